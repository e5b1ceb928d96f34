"""One attempt at a request: its legs run at once, and the first failure ends them all."""

from __future__ import annotations

from collections.abc import Callable

from sgl_epd.errors import ConnectError, DeadlineError, UnavailableError, UpstreamError
from sgl_epd.net.headers import RawHeaders, encode_headers
from sgl_epd_router import verdict as verdicts
from sgl_epd_router.context import RouterContext
from sgl_epd_router.deadlines import Alarm
from sgl_epd_router.judge import Judge
from sgl_epd_router.legs import Leg, Waker
from sgl_epd_router.outgoing import AttemptIds, Outgoing, leg_headers, request_parts
from sgl_epd_router.stream import DONE
from sgl_epd_router.verdict import OK, Verdict
from sgl_epd_router.worker import Outcome, Role


class StreamFailedError(Exception):
    """A stream broke after its beginning. `reported`: the events delivered so far contain the error already."""

    def __init__(self, verdict: Verdict, *, reported: bool) -> None:
        super().__init__(verdict.status)
        self.verdict = verdict
        self.reported = reported


class Attempt:
    """Takes its leases and sends at once. `close` must be called in the end, whatever happened."""

    def __init__(self, context: RouterContext, outgoing: Outgoing, exclude: frozenset[str], give_up_at: float) -> None:
        self.outgoing = outgoing
        self._context = context
        self._waker = Waker(context.loop)
        self._alarm = Alarm(context.loop, self._waker.wake)
        self._give_up_at = give_up_at
        self._failure: StreamFailedError | None = None
        self._end_seen = False
        self.on_prefilled: Callable[[], None] | None = None
        self.prefill: Leg | None = None
        self.main: Leg
        self._take_leases(exclude)
        self.ids = AttemptIds.new(outgoing, self.main.lease.worker)
        self._judge = Judge(
            self.main,
            self.prefill,
            context.deadlines,
            now=context.clock(),
            give_up_at=give_up_at,
            stream=outgoing.stream,
            needs_prefill_answer=outgoing.prompt_logprobs,
            prelude=outgoing.prelude,
        )
        try:
            self._send()
        except BaseException:
            self.close()
            raise

    @property
    def legs(self) -> list[Leg]:
        return [self.main] if self.prefill is None else [self.prefill, self.main]

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream of events; else it is whole, in `body`."""
        return bool(self._judge.first_events)

    @property
    def blamed_role(self) -> str:
        """The role of the (first) leg that failed."""
        failed = [leg.role for leg in self.legs if leg.verdict is not None and not leg.verdict.ok]
        return failed[0] if failed else self.main.role

    @property
    def status(self) -> int:
        return self.main.status

    @property
    def headers(self) -> RawHeaders:
        return self.main.headers

    @property
    def body(self) -> bytes:
        return self._judge.body

    @property
    def prefill_body(self) -> bytes:
        return self._judge.prefill_body

    async def settle(self) -> Verdict:
        """Wait until it is known whether the attempt works. OK: the answer may go to the client."""
        judge, clock = self._judge, self._context.clock
        while True:
            verdict = judge.judge(clock())
            self._release_prefill()
            if verdict is not None:
                if not self.streamed:
                    self._alarm.stop()
                return verdict
            self._alarm.set(judge.next_deadline())
            await self._waker.wait()

    def start_stream(self) -> bytes:
        """The first events. From here on a slow client slows the worker down."""
        self.main.streaming = True
        return self._checked(self._judge.first_events)

    async def next_events(self) -> bytes:
        """More complete events; empty at the end. Raises `StreamFailedError`."""
        leg, clock = self.main, self._context.clock
        idle_at = clock() + self._context.deadlines.stream_idle_s
        self._alarm.set(min(idle_at, self._give_up_at))
        while True:
            if self._failure is not None:
                raise self._failure
            data = leg.take()
            if data:
                events = self._judge.splitter.feed(data)
                if events:
                    return self._checked(events)
            if leg.done:
                return self._end_of_stream(leg)
            if clock() >= min(idle_at, self._give_up_at):
                self._fail_stream(self._silence(clock()), reported=False)
            self._judge.judge_prefill()
            self._release_prefill()
            if self._failure is None:
                await self._waker.wait()

    def request_abort(self) -> None:
        """The client wants the request to end early: ask the workers, and let them answer as they do for that."""
        self._judge.abort_requested_at = self._context.clock()
        for leg in self.legs:
            if not leg.done:
                self._abort(leg, "client")
        self._waker.wake()

    def close(self) -> None:
        """End everything that still runs and give the leases back."""
        self._alarm.stop()
        self._judge.judge_prefill()
        for leg in self.legs:
            if leg.lease.done:
                continue
            if not leg.ended and not isinstance(leg.error, ConnectError):
                self._abort(leg, "cleanup")
            leg.finish(_outcome(leg))

    def _take_leases(self, exclude: frozenset[str]) -> None:
        context, outgoing = self._context, self.outgoing
        if outgoing.role is not None or not context.staged:
            self.main = self._leg(outgoing.role or Role.REGULAR, exclude)
            return
        try:
            self.prefill, self.main = self._pair(exclude)
        except UnavailableError:
            if not context.registry.in_role(Role.REGULAR):
                raise
            self.main = self._leg(Role.REGULAR, exclude)

    def _pair(self, exclude: frozenset[str]) -> tuple[Leg, Leg]:
        prefill = self._leg(Role.PREFILL, exclude)
        try:
            return prefill, self._leg(Role.DECODE, exclude)
        except BaseException:
            prefill.finish(Outcome.CANCELLED)
            raise

    def _leg(self, role: Role, exclude: frozenset[str]) -> Leg:
        clock, registry = self._context.clock, self._context.registry
        if self.outgoing.only is not None:
            exclude |= frozenset([w.id for w in registry.in_role(role) if w.id != self.outgoing.only])
        lease = registry.select(role, self.outgoing.key, clock(), exclude)
        return Leg(lease, self._waker.wake, clock)

    def _send(self) -> None:
        outgoing, client = self.outgoing, self._context.client
        parts = request_parts(outgoing, self.ids, self.prefill.lease.worker if self.prefill else None)
        for leg in self.legs:
            worker = leg.lease.worker
            origin = client.origin(worker.url)
            target = origin.path + outgoing.target
            headers = leg_headers(outgoing, worker)
            if leg.lease.span is not None:
                headers += encode_headers(leg.lease.span.headers())
            leg.call = client.send(origin, outgoing.method, target, leg, encoded_headers=headers, body=parts)

    def _release_prefill(self) -> None:
        leg = self.prefill
        if leg is None or leg.lease.done or leg.verdict is None or not leg.verdict.ok:
            return
        leg.finish(Outcome.OK)
        if self.on_prefilled is not None:
            self.on_prefilled()

    def _abort(self, leg: Leg, reason: str) -> None:
        if self.outgoing.id_field:
            self._context.metrics.aborts.inc(leg.role, reason)
            self._context.aborter.abort(leg.lease.worker, self.ids.rids, registered=leg.status > 0)

    def _checked(self, events: bytes) -> bytes:
        marks = self.outgoing.end_marks
        self._end_seen = not marks or any(mark in events for mark in marks)
        verdict = verdicts.of_events(self.main.role, events)
        if verdict.ok or self._judge.abort_requested_at is not None:
            return events
        self._fail_stream(verdict, reported=b'"error"' in events)
        return events.removesuffix(DONE)

    def _fail_stream(self, verdict: Verdict, *, reported: bool) -> None:
        self.main.verdict = verdict
        self._failure = StreamFailedError(verdict, reported=reported)

    def _end_of_stream(self, leg: Leg) -> bytes:
        if leg.error is not None:
            self._fail_stream(verdicts.of_transport(leg.role, leg.error), reported=False)
        elif not self._end_seen:
            error = UpstreamError(f"the {leg.role} worker ended the stream early")
            self._fail_stream(verdicts.of_error(error, Outcome.FAILURE, retryable=False), reported=False)
        if self._failure is not None:
            raise self._failure
        leg.verdict = OK
        return b""

    def _silence(self, now: float) -> Verdict:
        deadlines = self._context.deadlines
        if now >= self._give_up_at:
            error = DeadlineError(f"the answer was not complete within {deadlines.total_s:g} s")
            return verdicts.of_error(error, Outcome.CANCELLED, retryable=False)
        error = DeadlineError(f"the {self.main.role} worker sent nothing for {deadlines.stream_idle_s:g} s")
        return verdicts.of_error(error, Outcome.FAILURE, retryable=False)


def _outcome(leg: Leg) -> Outcome:
    """How a leg that is being closed ended, seen from its worker."""
    verdict = leg.verdict
    if verdict is None:
        return Outcome.CANCELLED
    if verdict.ok and not leg.ended:
        return Outcome.CANCELLED  # it was fine, but the client or the other leg is gone
    return verdict.outcome
