"""All worker pools: workers come and go here, and dispatch takes its leases here.

Pure and synchronous. I/O (health probes, load polling, admin routes) changes it from outside. Every change of
membership or of a worker's state calls `on_change`, so that nobody has to poll for one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from sgl_epd.errors import NotFoundError, UnavailableError
from sgl_epd_router.breaker import Breaker, BreakerConfig
from sgl_epd_router.counters import MAX_WORKERS, CounterBoard
from sgl_epd_router.health import HealthConfig, HealthState, Probe
from sgl_epd_router.lease import Lease, LeaseObserver
from sgl_epd_router.load import LoadModel, LoadReport, LoadView
from sgl_epd_router.policies import Policy
from sgl_epd_router.pool import NOBODY, WorkerPool
from sgl_epd_router.route_key import EMPTY_KEY, RouteKey
from sgl_epd_router.worker import Role, Source, Worker, WorkerSpec

LOAD_MODELS = {
    # A typical image is about this many patches, a typical prompt this many tokens.
    Role.ENCODE: LoadModel(by_patches=True, unknown_work=1024.0, track_dispatch=True),
    Role.PREFILL: LoadModel(unknown_work=512.0),
    # A decode step takes about a + b*context + c*batch, so a request counts beside its tokens.
    Role.DECODE: LoadModel(request_weight=512.0, unknown_work=512.0),
    Role.REGULAR: LoadModel(request_weight=512.0, unknown_work=512.0),
}


@dataclasses.dataclass(frozen=True, slots=True)
class RegistryConfig:
    breaker: BreakerConfig = dataclasses.field(default_factory=BreakerConfig)
    health: HealthConfig = dataclasses.field(default_factory=HealthConfig)
    heartbeat_ttl_s: float = 600.0
    """A self-registered worker that has given no sign of life for so long is forgotten."""
    load_models: Mapping[Role, LoadModel] = dataclasses.field(default_factory=lambda: dict(LOAD_MODELS))


class Registry:
    def __init__(
        self, policies: Mapping[Role, Policy], config: RegistryConfig, board: CounterBoard | None = None
    ) -> None:
        self.config = config
        self.board = board or CounterBoard()
        self.pools = {role: WorkerPool(role, policy) for role, policy in policies.items()}
        self.workers: dict[str, Worker] = {}
        self.on_change: list[Callable[[], None]] = []
        self._incarnations = 0

    # -- dispatch ------------------------------------------------------------------------------------------------

    def select(
        self, role: Role, key: RouteKey = EMPTY_KEY, now: float = 0.0, exclude: frozenset[str] = NOBODY
    ) -> Lease:
        """Choose a worker and take it. Raises `UnavailableError` (503) or `NotFoundError` (404: unknown model)."""
        pool = self.pools.get(role)
        if pool is None:
            raise UnavailableError(f"this router has no {role} pool")
        return pool.select(key, now, exclude)

    def observe(self, *observers: LeaseObserver) -> None:
        """Let `observers` see every lease from now on."""
        for pool in self.pools.values():
            pool.observers += observers

    # -- membership ----------------------------------------------------------------------------------------------

    def add(self, spec: WorkerSpec, now: float) -> Worker:
        """Add a worker, or take the one of the same role and URL back into service with the new spec."""
        worker = self.workers.get(spec.id)
        if worker is None:
            worker = self._make(spec, self._free_slot(), now)
            self.workers[worker.id] = worker
        else:
            # A worker that a flag names stays for good, even if it registers itself as well.
            source = Source.FLAG if worker.spec.source is Source.FLAG else spec.source
            worker.spec = dataclasses.replace(spec, source=source)
            worker.draining = worker.removing = False
            worker.heartbeat_at = now
            worker.health = HealthState(self.config.health, now)
            worker.breaker.close()
        self._renew(worker)
        self._rebuild(spec.role)
        return worker

    def remove(self, worker_id: str) -> Worker:
        """Send no new requests to the worker; `sweep` forgets it once its last one has ended."""
        worker = self.get(worker_id)
        worker.draining = worker.removing = True
        self.changed()
        return worker

    def drain(self, worker_id: str, draining: bool = True) -> Worker:
        """Stop (or start again) sending requests to a worker that stays listed."""
        worker = self.get(worker_id)
        worker.draining = draining
        worker.removing = worker.removing and draining
        self.changed()
        return worker

    def update(self, worker_id: str, spec: WorkerSpec) -> Worker:
        """Change what may change in place; role and URL are a worker's identity."""
        worker = self.get(worker_id)
        if spec.id != worker.id:
            raise ValueError("role and URL of a worker cannot change; remove it and add another")
        worker.spec = spec
        self._rebuild(spec.role)
        return worker

    def heartbeat(self, worker_id: str, now: float) -> Worker:
        worker = self.get(worker_id)
        worker.heartbeat_at = now
        return worker

    def sweep(self, now: float) -> list[Worker]:
        """Remove registered workers that fell silent, and forget removed ones that are idle. Returns the forgotten."""
        for worker in self.workers.values():
            if worker.spec.source is Source.REGISTERED and self._silent(worker, now):
                worker.draining = worker.removing = True
        gone = [worker for worker in self.workers.values() if worker.removing and worker.load.own.requests <= 0]
        for worker in gone:
            del self.workers[worker.id]
        for role in {worker.role for worker in gone}:
            self._rebuild(role)
        return gone

    def get(self, worker_id: str) -> Worker:
        try:
            return self.workers[worker_id]
        except KeyError:
            raise NotFoundError(f"no worker {worker_id!r}", code="WORKER_NOT_FOUND") from None

    def in_role(self, role: Role) -> tuple[Worker, ...]:
        pool = self.pools.get(role)
        return pool.workers if pool else ()

    def ready(self, role: Role, now: float) -> int:
        """Workers of a role that have been seen alive and take requests."""
        return sum(
            w.health.healthy and w.health.proven and not w.draining and w.breaker.allows(now)
            for w in self.in_role(role)
        )

    # -- what I/O finds out --------------------------------------------------------------------------------------

    def record_probe(self, worker: Worker, probe: Probe, now: float) -> bool:
        """Returns whether the worker's health changed. One that comes back has lost its caches, in all likelihood."""
        changed = worker.health.record_probe(probe, now)
        if changed:
            if worker.health.healthy:
                worker.breaker.close()
                self._renew(worker)
            self.changed()
        return changed

    def record_report(self, worker: Worker, report: LoadReport, now: float) -> bool:
        return worker.load.observe(report, now)

    def changed(self) -> None:
        for callback in self.on_change:
            callback()

    # -- for the mirror of another process's registry ------------------------------------------------------------

    def place(self, spec: WorkerSpec, slot: int, now: float) -> Worker:
        """Add a worker in the slot that the other process gave it; `rebuild_all` must follow."""
        worker = self._make(spec, slot, now)
        self.workers[worker.id] = worker
        return worker

    def discard(self, worker: Worker) -> None:
        del self.workers[worker.id]

    def rebuild_all(self) -> None:
        for role, pool in self.pools.items():
            pool.set_workers(worker for worker in self.workers.values() if worker.role is role)
        self.changed()

    # -- inside --------------------------------------------------------------------------------------------------

    def _make(self, spec: WorkerSpec, slot: int, now: float) -> Worker:
        return Worker(
            spec,
            slot=slot,
            breaker=Breaker(self.config.breaker),
            health=HealthState(self.config.health, now),
            load=LoadView(self.config.load_models[spec.role], self.board, slot),
            now=now,
        )

    def _silent(self, worker: Worker, now: float) -> bool:
        """A good health check or an answer is as good as a heartbeat: stock encoders register, but never beat."""
        ttl_s = worker.spec.heartbeat_ttl_s or self.config.heartbeat_ttl_s
        return now - max(worker.heartbeat_at, worker.health.seen_at) > ttl_s

    def _renew(self, worker: Worker) -> None:
        self._incarnations += 1
        worker.incarnation = self._incarnations

    def _rebuild(self, role: Role) -> None:
        self.pools[role].set_workers(worker for worker in self.workers.values() if worker.role is role)
        self.changed()

    def _free_slot(self) -> int:
        used = {worker.slot for worker in self.workers.values()}
        if len(used) >= MAX_WORKERS:
            raise UnavailableError(f"the router cannot hold more than {MAX_WORKERS} workers")
        return next(slot for slot in range(MAX_WORKERS) if slot not in used)
