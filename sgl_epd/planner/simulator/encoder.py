"""An encode worker: a preprocessing pool beside one forward at a time, and embeddings that are sent to prefill.

Scheduler and block manager are the server's own. Only the pool's, the forward's and the link's times are made up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Embedding, Found, Reservation, Want
from sgl_epd.errors import PayloadTooLargeError, RequestError
from sgl_epd.planner.cost_model import CostModel
from sgl_epd.planner.simulator.events import Events, Link
from sgl_epd.planner.simulator.flight import Flight, Item
from sgl_epd.scheduler.encode import EncodeScheduler, Work
from sgl_epd.scheduler.order import Job, Stage

_FOREVER = float("inf")


Told = Callable[[Flight, Want], None]


@dataclasses.dataclass(slots=True)
class _Queued:
    """What the scheduler's job does not carry."""

    item: Item
    arrived_at: float
    megapixels: float


class Encoder:
    """`on_item` is told of every embedding that is there, once for each request that waits for it.

    `on_refusal` is told of a request whose embedding was evicted before prefill wanted it, and whose queue is full now.
    """

    def __init__(
        self,
        events: Events,
        cost: CostModel,
        scheduler: EncodeScheduler,
        blocks: MMBlockManager,
        *,
        cores: int,
        flights: Mapping[str, Flight],
        on_item: Told,
        on_refusal: Callable[[Flight], None],
    ) -> None:
        self._events, self._cost = events, cost
        self._scheduler, self._blocks = scheduler, blocks
        self._flights, self._on_item, self._on_refusal = flights, on_item, on_refusal
        self._link = Link()
        self._idle_cores, self._inline = cores, cores == 0
        self._queued: dict[bytes, _Queued] = {}
        self._batch: list[Job] = []
        self._granted: dict[Reservation, Callable[[Reservation], None]] = {}
        self.busy_s = 0.0

    def submit(self, flight: Flight, items: Sequence[Item]) -> None:
        """Encode these for this request.

        Raises `PayloadTooLargeError` or `UnavailableError`; then nothing is queued.
        """
        layout = self._blocks.layout
        if any(layout.blocks_for(item.want.rows) > layout.num_blocks for item in items):
            raise PayloadTooLargeError("an item is larger than the encoder's embedding cache")
        hits = [item for item in items if self._blocks.find(item.want) is not None]
        fresh = [item for item in items if item not in hits]
        works = [Work(str(item.content), item.want.key, item.modality, item.size.patches) for item in fresh]
        self._scheduler.submit(flight.id, works, self._events.now)
        self._note(fresh)
        for item in hits:
            self._events.after(0.0, self._on_item, flight, item.want)
        self._prepare()

    def deliver(self, flight: Flight, want: Want, arrived: Told) -> None:
        """Send an embedding that `on_item` told of, or encode it again if it is gone by now."""
        if self._blocks.find(want) is None:
            try:
                self.submit(flight, [next(item for item in flight.items if item.want == want)])
            except RequestError:
                self._on_refusal(flight)
            return
        reservation = self._blocks.reserve(flight.id, [want], self._events.now, _FOREVER)
        self._granted[reservation] = lambda granted: self._send(granted, flight, want, arrived)
        self._step()

    def cancel(self, flight: Flight) -> None:
        for job in self._scheduler.cancel(flight.id):
            del self._queued[job.key]

    def _note(self, items: Sequence[Item]) -> None:
        """Pixels of equal content in one request are loaded once, also where each copy is encoded."""
        loaded: set[int] = set()
        for item in items:
            megapixels = 0.0 if item.content in loaded else item.megapixels
            loaded.add(item.content)
            self._queued.setdefault(item.want.key, _Queued(item, self._events.now, megapixels))

    def _prepare(self) -> None:
        while self._inline or self._idle_cores:
            job = self._scheduler.next_to_prepare()
            if job is None:
                break
            if self._inline:
                self._prepared(job)
            else:
                self._idle_cores -= 1
                seconds = self._cost.preprocess.seconds(1, self._queued[job.key].megapixels)
                self._events.after(seconds, self._core_done, job)
        self._forward()

    def _core_done(self, job: Job) -> None:
        self._idle_cores += 1
        if job.stage is Stage.PREPARING:
            self._prepared(job)
        self._prepare()

    def _prepared(self, job: Job) -> None:
        size = self._queued[job.key].item.size
        self._scheduler.prepared(job, size.patches, size.embeddings)

    def _forward(self) -> None:
        """Start a batch if the device is free: its blocks first, as the server does."""
        if self._batch:
            return
        self._batch = self._scheduler.next_batch()
        if self._batch:
            wants = [self._queued[job.key].item.want for job in self._batch]
            self._granted[self._blocks.reserve("batch", wants, self._events.now, _FOREVER)] = self._run
            self._step()

    def _run(self, reservation: Reservation) -> None:
        queued = [self._queued[job.key] for job in self._batch]
        patches = sum(each.item.size.patches for each in queued)
        seconds = self._cost.encode.seconds(patches, sum(each.item.size.patches_squared for each in queued))
        if self._inline:
            seconds += self._cost.preprocess.seconds(len(queued), sum(each.megapixels for each in queued))
        for job, each in zip(self._batch, queued, strict=True):
            wait = self._events.now - each.arrived_at
            for waiter in self._scheduler.waiters(job):
                flight = self._flights.get(waiter.request_id)
                if flight is not None:
                    flight.encode_wait_s = max(flight.encode_wait_s, wait)
        self.busy_s += seconds
        self._events.after(seconds, self._encoded, reservation, seconds)

    def _encoded(self, reservation: Reservation, seconds: float) -> None:
        batch, self._batch = self._batch, []
        self._scheduler.ran(batch, seconds)
        for job in batch:
            want = self._queued.pop(job.key).item.want
            self._blocks.fill(reservation, want)
            for request_id in dict.fromkeys(waiter.request_id for waiter in self._scheduler.finish(job)):
                # A request may be over before: prefill had the embedding already.
                if request_id in self._flights:
                    self._on_item(self._flights[request_id], want)
        self._release(reservation)
        self._prepare()

    def _send(self, reservation: Reservation, flight: Flight, want: Want, arrived: Told) -> None:
        if reservation.found[want] is not Found.HIT:
            # Evicted while the reservation waited.
            self._release(reservation)
            self.deliver(flight, want, arrived)
            return
        embedding = self._blocks.begin_send(reservation, want)
        transfer = self._cost.embedding_transfer
        busy_s = transfer.byte_s * want.rows * self._blocks.layout.row_bytes
        arrives_at = self._link.send(self._events.now, transfer.latency_s, busy_s)
        self._events.at(arrives_at, self._sent, embedding, flight, want, arrived)
        self._release(reservation)

    def _sent(self, embedding: Embedding, flight: Flight, want: Want, arrived: Told) -> None:
        self._blocks.end_send(embedding, self._events.now)
        self._step()
        arrived(flight, want)

    def _release(self, reservation: Reservation) -> None:
        self._blocks.release(reservation, self._events.now)
        self._step()

    def _step(self) -> None:
        if not self._blocks.num_waiting:
            # Nobody to grant to, and no lease here ever ends.
            return
        for reservation in self._blocks.step(self._events.now).granted:
            self._granted.pop(reservation)(reservation)
