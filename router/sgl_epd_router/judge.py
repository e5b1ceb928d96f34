"""Decides, from what has arrived on the legs so far, whether an attempt works. Pure: no I/O, no clock.

Nothing is shown to the client before this decision, so a failure up to here can be tried again elsewhere.
"""

from __future__ import annotations

from typing import Protocol

from sgl_epd.errors import DeadlineError, TransportError, UpstreamError
from sgl_epd.net.headers import RawHeaders
from sgl_epd_router import verdict as verdicts
from sgl_epd_router.deadlines import NEVER, Deadlines
from sgl_epd_router.stream import EventSplitter
from sgl_epd_router.verdict import OK, Verdict
from sgl_epd_router.worker import Outcome

BLAME_S = 0.25
"""When one leg reports an error, how long the other may take to report a better one: a decode worker that lost its
prefill says "transfer failed", and the fault is not its own."""
PREFILL_GRACE_S = 2.0
"""How long decode's first token may wait for the prefill worker's own answer, which comes at about the same time.
Without the wait, an aborted prefill would reach the client as garbage (sglang#30233)."""
ABORT_GRACE_S = 10.0
"""How long workers may take to end a request whose client has asked for that."""


class LegView(Protocol):
    """What the judge looks at; `verdict` is what it writes down."""

    status: int
    headers: RawHeaders
    ended: bool
    error: TransportError | None
    verdict: Verdict | None

    @property
    def role(self) -> str: ...

    @property
    def is_events(self) -> bool: ...

    def take(self) -> bytes: ...


class Judge:
    """For one attempt. `judge` returns None as long as nothing is decided."""

    def __init__(
        self,
        main: LegView,
        prefill: LegView | None,
        deadlines: Deadlines,
        *,
        now: float,
        give_up_at: float,
        stream: bool,
        needs_prefill_answer: bool = False,
        prelude: tuple[bytes, ...] = (),
    ) -> None:
        self.body = b""
        """The whole answer of the main leg, when it is not a stream."""
        self.first_events = b""
        self.prefill_body = b""
        self.splitter = EventSplitter()
        self.abort_requested_at: float | None = None
        self._main = main
        self._prefill = prefill
        self._deadlines = deadlines
        self._give_up_at = give_up_at
        self._needs_prefill_answer = needs_prefill_answer
        self._prelude = prelude
        self._prefill_at = now + deadlines.prefill_s if prefill is not None else NEVER
        self._first_token_at = now + deadlines.first_token_s if stream else NEVER
        self._blame_at = NEVER
        self._grace_at = NEVER

    def judge(self, now: float) -> Verdict | None:
        self.judge_prefill()
        main = self._main
        if main.verdict is None:
            main.verdict = self._judge_main(main)
        verdict = main.verdict if self._prefill is None else self._combine(self._prefill, main, now)
        return verdict if verdict is not None else self._judge_time(now)

    def judge_prefill(self) -> None:
        """Also of use after the first token: a prefill's lease is given back as soon as its answer has ended."""
        leg = self._prefill
        if leg is None or leg.verdict is not None:
            return
        if leg.error is not None:
            leg.verdict = verdicts.of_transport(leg.role, leg.error)
        elif leg.ended:
            self.prefill_body = leg.take()
            leg.verdict = self._of_prefill(leg)

    def next_deadline(self) -> float:
        """When to judge again even if nothing arrives."""
        at = min(self._give_up_at, self._blame_at, self._grace_at, self._first_token_at)
        if self._prefill is not None and self._prefill.verdict is None:
            at = min(at, self._prefill_at)
        if self.abort_requested_at is not None:
            at = min(at, self.abort_requested_at + ABORT_GRACE_S)
        return at

    def _of_prefill(self, leg: LegView) -> Verdict:
        if leg.status >= 400:
            return verdicts.of_status(leg.status, leg.headers, self.prefill_body)
        if self.abort_requested_at is not None:
            return OK
        if leg.is_events:
            return verdicts.of_events(leg.role, self.prefill_body)
        return verdicts.of_prefill_body(leg.headers, self.prefill_body)

    def _judge_main(self, leg: LegView) -> Verdict | None:
        if leg.error is not None:
            return verdicts.of_transport(leg.role, leg.error)
        if leg.status == 0:
            return None
        if leg.status == 200 and leg.is_events:
            return self._judge_events(leg)
        if not leg.ended:
            return None
        self.body = leg.take()
        if leg.status >= 400:
            return verdicts.of_status(leg.status, leg.headers, self.body)
        if leg.status >= 300:
            error = UpstreamError(f"the {leg.role} worker answered with status {leg.status}")
            return verdicts.of_error(error, Outcome.FAILURE, retryable=True)
        return verdicts.of_body(leg.role, leg.headers, self.body)

    def _judge_events(self, leg: LegView) -> Verdict | None:
        self.first_events += self.splitter.feed(leg.take())
        if self.first_events and not (self._only_prelude() and not leg.ended):
            return verdicts.of_events(leg.role, self.first_events)
        if leg.ended:
            error = UpstreamError(f"the {leg.role} worker sent an empty stream")
            return verdicts.of_error(error, Outcome.FAILURE, retryable=True)
        return None

    def _only_prelude(self) -> bool:
        events = self.first_events.split(b"\n\n")
        return bool(self._prelude) and all(not event or event.startswith(self._prelude) for event in events)

    def _combine(self, prefill: LegView, main: LegView, now: float) -> Verdict | None:
        """Both legs must be fine; of two failures the one that explains more goes to the client."""
        p, d = prefill.verdict, main.verdict
        if p is None and d is None:
            return None
        if p is not None and d is not None:
            # Decode can only answer once it has the KV: a prefill worker that is lost after that does no harm.
            if p.ok or (d.ok and prefill.error is not None):
                return d
            return p if d.ok or d.outcome is not Outcome.CLIENT_ERROR else d
        if d is not None and d.ok:
            return self._await_prefill(d, now)
        if p is not None and p.ok:
            return None
        return self._await_other(main if p is None else prefill, now)

    def _await_prefill(self, ok: Verdict, now: float) -> Verdict | None:
        if self._needs_prefill_answer:
            return None
        self._grace_at = min(self._grace_at, now + PREFILL_GRACE_S)
        return ok if now >= self._grace_at else None

    def _await_other(self, failed: LegView, now: float) -> Verdict | None:
        """`failed` is the only leg that has ended. A lost worker or a client's error needs no second opinion."""
        verdict = failed.verdict
        if verdict is None or verdict.outcome is Outcome.CLIENT_ERROR or failed.error is not None:
            return verdict
        self._blame_at = min(self._blame_at, now + BLAME_S)
        return verdict if now >= self._blame_at else None

    def _judge_time(self, now: float) -> Verdict | None:
        if self.abort_requested_at is not None and now >= self.abort_requested_at + ABORT_GRACE_S:
            return verdicts.of_error(DeadlineError("the request was aborted"), Outcome.CANCELLED, retryable=False)
        if now >= self._give_up_at:
            error = DeadlineError(f"no answer within {self._deadlines.total_s:g} s")
            return verdicts.of_error(error, Outcome.CANCELLED, retryable=False)
        prefill, main = self._prefill, self._main
        if prefill is not None and prefill.verdict is None and now >= self._prefill_at:
            prefill.verdict = too_slow("prefill", self._deadlines.prefill_s)
            return prefill.verdict
        if main.verdict is None and now >= self._first_token_at:
            main.verdict = too_slow(main.role, self._deadlines.first_token_s)
            return main.verdict
        return None


def too_slow(role: str, limit_s: float) -> Verdict:
    error = DeadlineError(f"the {role} worker did not answer within {limit_s:g} s")
    return verdicts.of_error(error, Outcome.FAILURE, retryable=True)
