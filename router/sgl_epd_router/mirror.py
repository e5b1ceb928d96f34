"""The pools of a router process as a mirror of the control process's, and the outcomes that it sends back.

A router process keeps its own breakers, so that it reacts at once to what it sees itself; what the control process
concludes from all processes together overrides them whenever that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sgl_epd_router.breaker import Breaker, BreakerState
from sgl_epd_router.lease import Lease
from sgl_epd_router.registry import Registry
from sgl_epd_router.wire import Outcomes, PoolState, WorkerOutcomes, WorkerState
from sgl_epd_router.worker import Outcome, Worker

_FLUSH_S = 0.05
_NONE = [0, 0, 0, 0]


def pool_state(registry: Registry, draining: bool) -> PoolState:
    return PoolState([_worker_state(worker) for worker in registry.workers.values()], draining)


def _worker_state(worker: Worker) -> WorkerState:
    return WorkerState(
        spec=worker.spec,
        slot=worker.slot,
        incarnation=worker.incarnation,
        draining=worker.draining,
        removing=worker.removing,
        healthy=worker.health.healthy,
        proven=worker.health.proven,
        reason=worker.health.reason,
        breaker=worker.breaker.state.value,
        opened_at=worker.breaker.opened_at,
        correction=worker.load.correction,
        report=worker.load.report,
    )


class Mirror:
    """Applies each `PoolState` to a registry that nobody else changes."""

    def __init__(self, registry: Registry, on_gone: Callable[[Worker], None]) -> None:
        self._registry = registry
        self._on_gone = on_gone
        self._breakers: dict[str, tuple[str, float]] = {}

    def apply(self, state: PoolState, now: float) -> None:
        wanted = {one.spec.id: one for one in state.workers}
        for worker in [w for w in self._registry.workers.values() if self._replaced(w, wanted.get(w.id))]:
            self._registry.discard(worker)
            self._breakers.pop(worker.id, None)
            self._on_gone(worker)
        for one in state.workers:
            worker = self._registry.workers.get(one.spec.id) or self._registry.place(one.spec, one.slot, now)
            self._update(worker, one)
        self._registry.rebuild_all()

    @staticmethod
    def _replaced(worker: Worker, one: WorkerState | None) -> bool:
        return one is None or one.slot != worker.slot

    def _update(self, worker: Worker, one: WorkerState) -> None:
        worker.spec = one.spec
        worker.incarnation = one.incarnation
        worker.draining, worker.removing = one.draining, one.removing
        worker.health.override(one.healthy, one.reason, one.proven)
        worker.load.correction, worker.load.report = one.correction, one.report
        known, told = self._breakers.get(worker.id), (one.breaker, one.opened_at)
        if told == known:
            return
        self._breakers[worker.id] = told
        if one.breaker == BreakerState.OPEN:
            worker.breaker.open(one.opened_at)
        elif one.breaker == BreakerState.CLOSED and known is not None:
            worker.breaker.close()


class OutcomeSender:
    """A `LeaseObserver` that reports to the control process: failures at once, the rest a few times a second."""

    def __init__(self, send: Callable[[Outcomes], None], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._counts: dict[str, list[int]] = {}
        """Worker id -> good, failed, good trials, failed trials."""
        self._workers: dict[str, Worker] = {}
        self._timer: asyncio.TimerHandle | None = None

    def on_start(self, lease: Lease) -> None:
        # A long answer is a sign of life too, so every worker in use is reported on.
        self._workers[lease.worker.id] = lease.worker
        self._schedule(_FLUSH_S)

    def on_finish(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.CANCELLED:
            return
        counts = self._counts.setdefault(lease.worker.id, [0, 0, 0, 0])
        counts[(outcome is Outcome.FAILURE) + 2 * lease.is_trial] += 1
        self._schedule(0.0 if outcome is Outcome.FAILURE or lease.is_trial else _FLUSH_S)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, delay_s: float) -> None:
        if self._timer is not None:
            if delay_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._flush)

    def _flush(self) -> None:
        self._timer = None
        rows = [self._row(worker) for worker in self._workers.values()]
        self._counts.clear()
        self._workers = {name: worker for name, worker in self._workers.items() if worker.load.mine_busy}
        if rows:
            self._send(Outcomes(rows))
        if self._workers:
            self._schedule(1.0)

    def _row(self, worker: Worker) -> WorkerOutcomes:
        good, failed, good_trials, failed_trials = self._counts.get(worker.id, _NONE)
        return WorkerOutcomes(worker.id, good, failed, good_trials, failed_trials, worker.health.seen_at)


def apply_outcomes(registry: Registry, outcomes: Outcomes, now: float) -> bool:
    """Let the control process's breakers see what a router process saw. Returns whether one has changed."""
    changed = False
    for row in outcomes.workers:
        worker = registry.workers.get(row.worker_id)
        if worker is None:
            continue
        before = worker.breaker.state
        worker.health.seen_at = max(worker.health.seen_at, row.seen_at)
        _feed(worker.breaker, row, now)
        if row.failed or row.failed_trials:
            worker.health.suspect(now)
        changed |= worker.breaker.state is not before
    return changed


def _feed(breaker: Breaker, row: WorkerOutcomes, now: float) -> None:
    for _ in range(row.good):
        breaker.record_success(now)
    for _ in range(row.failed):
        breaker.record_failure(now)
    for failed, trials in ((False, row.good_trials), (True, row.failed_trials)):
        for _ in range(trials):
            # The router process has let this trial through; here it is only counted.
            trial = breaker.start() if breaker.allows(now) else 0
            breaker.record_failure(now, trial) if failed else breaker.record_success(now, trial)
