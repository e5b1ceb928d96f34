"""A worker with the language model: prefill, decode, or both, and encode inside prefill where nobody else encodes.

One step at a time, prefill before decode, as SGLang's scheduler has it. Decode leaps to the next step at which its
batch changes, and is cut short at the end of a step when something else is to happen.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Want
from sgl_epd.errors import RequestError
from sgl_epd.planner.cost_model import CostModel, attended_pairs
from sgl_epd.planner.models.spec import ModelSpec
from sgl_epd.planner.simulator.events import Events, Link
from sgl_epd.planner.simulator.flight import Flight, Item
from sgl_epd.planner.simulator.intake import Intake
from sgl_epd.planner.stages import Stage, Stages
from sgl_epd.scheduler.decode import DecodeJob, DecodeScheduler
from sgl_epd.scheduler.prefill import Chunk, PrefillJob, PrefillScheduler


class Hooks(Protocol):
    """What a worker tells the simulation."""

    flights: dict[str, Flight]

    def first_token(self, flight: Flight) -> None: ...

    def finished(self, flight: Flight) -> None: ...

    def refused(self, flight: Flight) -> None: ...

    def gap(self, seconds: float, count: int) -> None: ...


class LanguageWorker:
    def __init__(
        self,
        events: Events,
        cost: CostModel,
        model: ModelSpec,
        stages: Stages,
        prefill: PrefillScheduler,
        decode: DecodeScheduler,
        blocks: MMBlockManager,
        hooks: Hooks,
        *,
        cores: int,
        reserve_tokens: int,
    ) -> None:
        self._events, self._cost, self._model, self._hooks = events, cost, model, hooks
        self._prefill, self._decode = prefill, decode
        self._intake = Intake(
            events, cost, blocks, hooks.flights, self._complete, encodes=Stage.ENCODE in stages, cores=cores
        )
        self._encodes = Stage.ENCODE in stages
        self._decodes = Stage.DECODE in stages
        self._reserve_tokens = reserve_tokens if self._decodes else 0
        self._link = Link()
        self._prefixes: set[str] = set()
        """Streams whose common beginning is in the KV cache."""
        self._adoptees: deque[tuple[Flight, DecodeJob, int]] = deque()
        self._busy = False
        self._leap: _Leap | None = None
        self.busy_s = 0.0

    # Prefill's side

    def expect(self, flight: Flight) -> None:
        """A request comes here for prefill. Raises what the schedulers raise; then nothing is held."""
        flight.prefiller = self
        self._intake.expect(flight)

    def encoded(self, flight: Flight, want: Want) -> None:
        """An encoder has this embedding."""
        self._intake.encoded(flight, want)

    def give_up(self, flight: Flight) -> None:
        """The request is over before its prefill is."""
        self._intake.release(flight)
        if flight.prefill_job is not None:
            self._prefill.cancel(flight.prefill_job)

    def _send_kv(self, flight: Flight) -> None:
        """To its decode worker, which has room."""
        transfer = self._cost.kv_transfer
        nbytes = self._model.kv_bytes(flight.prompt_tokens, sum(item.size.embeddings for item in flight.items))
        arrives_at = self._link.send(self._events.now, transfer.latency_s, transfer.byte_s * nbytes)
        self._events.at(arrives_at, self._kv_sent, flight)

    def _kv_sent(self, flight: Flight) -> None:
        assert flight.prefill_job is not None and flight.decoder is not None
        self._prefill.release(flight.prefill_job)
        self.kick()
        flight.decoder.kv_arrived(flight)

    def _complete(self, flight: Flight) -> None:
        """Text, pixels or embeddings are all there."""
        flight.complete_at = self._events.now
        self.may_begin(flight)

    def may_begin(self, flight: Flight) -> None:
        """Into prefill's queue, once it is complete and its decode worker has room.

        SGLang's prefill waits for that as well (its bootstrap queue). Otherwise a prompt that is done could hold KV
        here while it waits for room there, which is held by one that waits for KV here.
        """
        if flight.complete_at < 0 or not (flight.granted or flight.decoder is None):
            return
        try:
            self._submit(flight)
        except RequestError:
            self._hooks.refused(flight)

    def _submit(self, flight: Flight) -> None:
        request = flight.request
        cached = request.prefix_tokens if request.stream in self._prefixes else 0
        if self._decodes:
            self._decode.ensure_fits(flight.prompt_tokens + request.output_tokens)
        reserve = min(request.output_tokens, self._reserve_tokens)
        job = PrefillJob(flight.id, flight.prompt_tokens, self._events.now, cached, reserve)
        self._prefill.submit(job)
        flight.prefill_job, flight.ready_at = job, self._events.now
        self.kick()

    # Decode's side

    def make_room(self, flight: Flight) -> None:
        """A request will be decoded here. Raises what the scheduler raises; then nothing is held."""
        job = DecodeJob(flight.id, flight.prompt_tokens + 1, max(1, flight.request.output_tokens - 1))
        self._decode.submit(job)
        flight.decode_job = job
        self._grant()

    def kv_arrived(self, flight: Flight) -> None:
        assert flight.decode_job is not None
        self._hooks.first_token(flight)
        if flight.request.output_tokens == 1:
            self._decode.cancel(flight.decode_job)
            self._hooks.finished(flight)
            self._grant()
            return
        self._decode.ready(flight.decode_job)
        self.kick()

    def forget(self, flight: Flight) -> None:
        if flight.decode_job is not None:
            self._decode.cancel(flight.decode_job)
            self._grant()

    def _grant(self) -> None:
        resumed = False
        for job in self._decode.grant():
            flight = self._hooks.flights[job.request_id]
            if flight.granted:
                # Retracted before; its KV is still in this host.
                self._decode.ready(job)
                resumed = True
                continue
            flight.granted = True
            if flight.prefiller is not None:
                flight.prefiller.may_begin(flight)
        if resumed:
            self.kick()

    # The device

    def kick(self) -> None:
        """Something may be to do: start it, or end a leap with the step that is running."""
        if self._leap is not None:
            self._cut_leap()
        elif not self._busy:
            self._next()

    def _next(self) -> None:
        if self._decodes:
            self._adopt()
        batch = self._prefill.next_batch() if self._may_prefill() else []
        if batch:
            self._run_prefill(batch)
        elif self._decode.join():
            self._start_leap()

    def _may_prefill(self) -> bool:
        """Not while answers wait for KV or for a place in the batch."""
        return bool(self._prefill) and not self._adoptees and not (self._decodes and self._decode.num_waiting)

    def _run_prefill(self, batch: list[Chunk]) -> None:
        now, seconds = self._events.now, 0.0
        media: list[Item] = []
        for chunk in batch:
            flight = self._hooks.flights[chunk.job.request_id]
            if flight.started_at < 0:
                flight.started_at = now
                media += flight.items if self._encodes else ()
        if media:
            seconds += self._intake.encode_s(media)
        new = sum(chunk.new for chunk in batch)
        seconds += self._cost.prefill.seconds(new, sum(attended_pairs(chunk.new, chunk.past) for chunk in batch))
        self._busy = True
        self.busy_s += seconds
        self._events.after(seconds, self._prefilled, batch, media)

    def _prefilled(self, batch: list[Chunk], media: list[Item]) -> None:
        self._busy = False
        self._intake.keep(media)
        for job in self._prefill.ran(batch):
            flight = self._hooks.flights[job.request_id]
            self._prefixes.add(flight.request.stream)
            self._intake.release(flight)
            if flight.decoder is None:
                self._continue_here(flight, job)
            else:
                self._send_kv(flight)
        self.kick()

    def _continue_here(self, flight: Flight, job: PrefillJob) -> None:
        self._hooks.first_token(flight)
        if flight.request.output_tokens == 1:
            self._prefill.release(job)
            self._hooks.finished(flight)
            return
        flight.decode_job = DecodeJob(flight.id, flight.prompt_tokens + 1, flight.request.output_tokens - 1)
        flight.granted = True
        self._adoptees.append((flight, flight.decode_job, self._prefill.hand_over(job)))

    def _adopt(self) -> None:
        while self._adoptees and self._decode.adopt(*self._adoptees[0][1:]):
            self._adoptees.popleft()

    def _start_leap(self) -> None:
        sequences, context = self._decode.num_running, self._decode.context_tokens
        steps = self._decode.steps_until_change()
        self._leap = _Leap(self._events.now, sequences, context, steps)
        self._busy = True
        self._plan_end(self._leap, steps)

    def _cut_leap(self) -> None:
        """At the end of the step that is running; its end may be planned already."""
        leap = self._leap
        assert leap is not None
        steps = self._cost.decode.steps_within(self._events.now - leap.begun_at, leap.context, leap.sequences) + 1
        if steps < leap.steps:
            leap.steps = steps
            self._plan_end(leap, steps)

    def _plan_end(self, leap: _Leap, steps: int) -> None:
        seconds = self._cost.decode.many(steps, leap.context, leap.sequences)
        self._events.at(leap.begun_at + seconds, self._landed, leap, steps)

    def _landed(self, leap: _Leap, steps: int) -> None:
        if leap is not self._leap or steps != leap.steps:
            return
        self._leap, self._busy = None, False
        seconds = self._cost.decode.many(steps, leap.context, leap.sequences)
        self.busy_s += seconds
        self._hooks.gap(seconds / steps, steps * leap.sequences)
        for job in self._decode.stepped(steps):
            self._hooks.finished(self._hooks.flights[job.request_id])
        self._grant()
        if not self._busy:
            self._next()


class _Leap:
    """Decode steps that run one after the other, as planned so far."""

    __slots__ = ("begun_at", "context", "sequences", "steps")

    def __init__(self, begun_at: float, sequences: int, context: int, steps: int) -> None:
        self.begun_at, self.sequences, self.context, self.steps = begun_at, sequences, context, steps
