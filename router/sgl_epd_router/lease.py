"""A lease: the right to send one request to one worker, and the duty to say how it ended.

Everything that must go back to zero hangs on it: in-flight work, breaker trials, passive health, metrics.
"""

from __future__ import annotations

from typing import Protocol

from sgl_epd_router.policies.base import Choice
from sgl_epd_router.tracing import Span
from sgl_epd_router.worker import Outcome, Role, Worker


class LeaseObserver(Protocol):
    """What watches leases: metrics, the fan-out to other processes, the removal of drained workers."""

    def on_start(self, lease: Lease) -> None: ...

    def on_finish(self, lease: Lease, outcome: Outcome, now: float) -> None: ...


class Lease:
    """Made by `Registry.select`; ends with the first call of `finish`, later ones change nothing."""

    __slots__ = (
        "_observers",
        "_patches",
        "_tokens",
        "_trial",
        "choice",
        "first_byte_at",
        "number",
        "outcome",
        "policy",
        "span",
        "started_at",
        "worker",
    )

    def __init__(
        self,
        worker: Worker,
        choice: Choice,
        policy: str,
        *,
        tokens: int,
        patches: int,
        now: float,
        observers: tuple[LeaseObserver, ...] = (),
    ) -> None:
        self.worker = worker
        self.choice = choice
        self.policy = policy
        self.started_at = now
        self.first_byte_at: float | None = None
        self.outcome: Outcome | None = None
        self.span: Span | None = None
        """The trace of this leg, if there is one."""
        self._observers = observers
        self._tokens = tokens
        self._patches = patches
        self._trial = worker.breaker.start()
        self.number = worker.load.start(tokens, patches)
        """The worker's dispatch number; our own workers echo the last one seen in their load reports."""
        for observer in observers:
            observer.on_start(self)

    @property
    def role(self) -> Role:
        return self.worker.spec.role

    @property
    def done(self) -> bool:
        return self.outcome is not None

    @property
    def is_trial(self) -> bool:
        """Whether it was sent to find out if a worker with a half-open breaker is well again."""
        return self._trial > 0

    def touch(self, now: float) -> None:
        """Bytes of the worker's answer arrived: it is alive, however late its health probe answers."""
        self.worker.health.seen_at = now
        if self.first_byte_at is None:
            self.first_byte_at = now

    def finish(self, outcome: Outcome, now: float) -> None:
        """Give back what the lease holds and tell breaker, health and observers how it ended."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        worker = self.worker
        worker.load.finish(self._tokens, self._patches, self.number)
        if outcome is Outcome.FAILURE:
            worker.breaker.record_failure(now, self._trial)
            worker.health.suspect(now)
        elif outcome is Outcome.CANCELLED:
            worker.breaker.record_neutral(self._trial)
        else:
            worker.breaker.record_success(now, self._trial)
            worker.health.seen_at = now
        for observer in self._observers:
            observer.on_finish(self, outcome, now)
