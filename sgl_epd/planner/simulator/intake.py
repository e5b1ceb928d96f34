"""What a prefill worker needs of a request's media before it can begin: embeddings from encoders, or prepared pixels.

Embeddings come into blocks that were reserved before (`MMBlockManager`, as on the server), whatever their order, and
stay as cache. A worker that encodes by itself prepares pixels on its own cores and encodes inside its prefill steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Found, Reservation, Want
from sgl_epd.planner.cost_model import CostModel
from sgl_epd.planner.models.spec import NO_MEDIA
from sgl_epd.planner.simulator.events import Events
from sgl_epd.planner.simulator.flight import Flight, Item

_FOREVER = float("inf")


class Intake:
    """`on_complete` is told of every request whose media are there; at once of one without any."""

    def __init__(
        self,
        events: Events,
        cost: CostModel,
        blocks: MMBlockManager,
        flights: Mapping[str, Flight],
        on_complete: Callable[[Flight], None],
        *,
        encodes: bool,
        cores: int,
    ) -> None:
        self._events, self._cost, self.blocks = events, cost, blocks
        self._flights, self._on_complete = flights, on_complete
        self._encodes = encodes
        self._cores = [0.0] * cores
        """When each of them is idle."""

    def expect(self, flight: Flight) -> None:
        """Raises `PayloadTooLargeError` or `UnavailableError`; then nothing is held."""
        if not flight.items:
            self._on_complete(flight)
        elif self._encodes:
            self._preprocess(flight)
        else:
            wants = [item.want for item in flight.items]
            flight.reservation = self.blocks.reserve(flight.id, wants, self._events.now, _FOREVER)
            self._step()

    def encoded(self, flight: Flight, want: Want) -> None:
        """An encoder has it: fetch it, if its blocks are reserved and it is for this request to do so."""
        reservation = flight.reservation
        embedding = reservation.embeddings.get(want) if reservation is not None else None
        if embedding is not None and embedding.writer is reservation:
            flight.encoders[want].deliver(flight, want, self._arrived)

    def release(self, flight: Flight) -> None:
        """Its prefill is done, or the request is: what is there is cache."""
        if flight.reservation is not None:
            unfilled = not flight.reservation.complete
            self.blocks.release(flight.reservation, self._events.now)
            flight.reservation = None
            if unfilled or self.blocks.num_waiting:
                self._step()

    def _step(self) -> None:
        changes = self.blocks.step(self._events.now)
        for reservation in changes.granted:
            self._reserved(self._flights[reservation.owner], reservation)
        for embedding in changes.promoted:
            writer = embedding.writer
            if writer is not None:
                flight = self._flights[writer.owner]
                if embedding.want in flight.encoded:
                    self.encoded(flight, embedding.want)

    def _reserved(self, flight: Flight, reservation: Reservation) -> None:
        if reservation.complete:
            self._on_complete(flight)
            return
        for want, found in reservation.found.items():
            if found is Found.MISS and want in flight.encoded:
                self.encoded(flight, want)

    def _arrived(self, flight: Flight, want: Want) -> None:
        """Whoever waits for this embedding has it now."""
        reservation = flight.reservation
        if reservation is None or not self.blocks.fill(reservation, want):
            return
        for holder in list(reservation.embeddings[want].holders):
            if holder.complete:
                self._on_complete(self._flights[holder.owner])

    def _preprocess(self, flight: Flight) -> None:
        """On this worker's own cores, in order of arrival. Without cores the forward does it."""
        loaded: set[int] = set()
        flight.unprepared = len(flight.items) if self._cores else 0
        if not self._cores:
            self._on_complete(flight)
        for item in flight.items if self._cores else ():
            megapixels = 0.0 if item.content in loaded else item.megapixels
            loaded.add(item.content)
            core = min(range(len(self._cores)), key=self._cores.__getitem__)
            begin = max(self._events.now, self._cores[core])
            self._cores[core] = begin + self._cost.preprocess.seconds(1, megapixels)
            self._events.at(self._cores[core], self._preprocessed, flight)

    def _preprocessed(self, flight: Flight) -> None:
        flight.unprepared -= 1
        if not flight.unprepared and not flight.done:
            self._on_complete(flight)

    def encode_s(self, media: list[Item]) -> float:
        """Of what is not cached; equal items once."""
        fresh = [item for item in {item.want: item for item in media}.values() if self.blocks.find(item.want) is None]
        if not fresh:
            return 0.0
        size = sum((item.size for item in fresh), NO_MEDIA)
        seconds = self._cost.encode.seconds(size.patches, size.patches_squared)
        if not self._cores:
            pixels = {item.content: item.megapixels for item in fresh}
            seconds += self._cost.preprocess.seconds(len(fresh), sum(pixels.values()))
        return seconds

    def keep(self, media: list[Item]) -> None:
        """What was encoded here goes into the cache if there is room."""
        for item in media:
            if self.blocks.layout.blocks_for(item.want.rows) > self.blocks.layout.num_blocks:
                continue
            reservation = self.blocks.reserve("cache", [item.want], self._events.now, _FOREVER)
            self.blocks.step(self._events.now)
            self.blocks.fill(reservation, item.want)
            self.blocks.release(reservation, self._events.now)
