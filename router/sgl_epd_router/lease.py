"""A lease: the right to send one request to one worker, and the duty to say how it ended.

Everything that must go back to zero hangs on it: in-flight work, breaker trials, passive health, metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sgl_epd_router.policies.base import Choice
from sgl_epd_router.worker import Outcome, Role, Worker

if TYPE_CHECKING:
    from sgl_epd_router.registry import WorkerPool


class LeaseObserver(Protocol):
    """What watches leases (metrics, the fan-out to other processes)."""

    def on_start(self, worker: Worker, policy: str, choice: Choice) -> None: ...

    def on_finish(self, worker: Worker, outcome: Outcome, latency_s: float, first_byte_s: float | None) -> None: ...


class Lease:
    """Made by `Registry.select`. `finish` must be called exactly once a lease; later calls change nothing."""

    __slots__ = (
        "_first_byte_at",
        "_patches",
        "_pool",
        "_tokens",
        "_trial",
        "choice",
        "outcome",
        "started_at",
        "worker",
    )

    def __init__(
        self, pool: WorkerPool, worker: Worker, choice: Choice, tokens: float, patches: float, now: float
    ) -> None:
        self.worker = worker
        self.choice = choice
        self.started_at = now
        self.outcome: Outcome | None = None
        self._pool = pool
        self._tokens = tokens
        self._patches = patches
        self._first_byte_at: float | None = None
        self._trial = worker.breaker.start(now)
        worker.load.start(tokens, patches)

    @property
    def role(self) -> Role:
        return self.worker.spec.role

    @property
    def done(self) -> bool:
        return self.outcome is not None

    def touch(self, now: float) -> None:
        """Bytes of the worker's answer arrived: it is alive, however late its health probe answers."""
        self.worker.health.seen_at = now
        if self._first_byte_at is None:
            self._first_byte_at = now

    def finish(self, outcome: Outcome, now: float) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._pool.finish(self, outcome, now)

    def release(self, outcome: Outcome, now: float) -> None:
        """Give back what the lease holds; called by the pool only."""
        worker = self.worker
        worker.load.finish(self._tokens, self._patches)
        if outcome is Outcome.FAILURE:
            worker.breaker.record_failure(now, self._trial)
        elif outcome is Outcome.CANCELLED:
            worker.breaker.record_neutral(self._trial)
        else:
            worker.breaker.record_success(now, self._trial)
            worker.health.seen_at = now

    def first_byte_s(self) -> float | None:
        """Seconds from the start to the first byte of the answer, if one came."""
        return None if self._first_byte_at is None else self._first_byte_at - self.started_at
