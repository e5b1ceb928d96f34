"""The pools of workers: who is there, who may take a request now, and who takes this one.

Pure and synchronous. I/O (health probes, load polling, admin routes) changes it from outside; dispatch takes leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sgl_epd.errors import NotFoundError, UnavailableError
from sgl_epd_router.breaker import Breaker, BreakerConfig, BreakerState
from sgl_epd_router.health import HealthConfig, HealthState
from sgl_epd_router.lease import Lease, LeaseObserver
from sgl_epd_router.load import LoadView
from sgl_epd_router.policies import Policy
from sgl_epd_router.route_key import EMPTY_KEY, RouteKey
from sgl_epd_router.worker import Outcome, Role, Worker, WorkerSpec

NOBODY: frozenset[str] = frozenset()


class RegistryConfig(NamedTuple):
    breaker: BreakerConfig = BreakerConfig()
    health: HealthConfig = HealthConfig()
    decode_request_tokens: float = 512.0
    """What one running request adds to a decode step, expressed in tokens of context."""


class WorkerPool:
    """The workers of one role under one policy, in order of id."""

    def __init__(self, role: Role, policy: Policy) -> None:
        self.role = role
        self.policy = policy
        self.workers: tuple[Worker, ...] = ()
        self.observer: LeaseObserver | None = None
        self.on_idle: Callable[[Worker], None] | None = None
        self._models: frozenset[str] = frozenset()

    def set_workers(self, workers: Iterable[Worker]) -> None:
        self.workers = tuple(sorted(workers, key=lambda worker: worker.id))
        self._models = frozenset(worker.model_id for worker in self.workers if worker.model_id)

    def select(self, key: RouteKey, now: float, exclude: frozenset[str] = NOBODY) -> Lease:
        candidates = self._candidates(key, now, exclude)
        if not candidates:
            raise self._unavailable(key, now, exclude)
        policy = self.policy
        if policy.uses_load:
            for worker in candidates:
                worker.refresh(now)
        choice = policy.choose(candidates, key, now)
        worker = candidates[choice.pick]
        tokens = key.prompt_tokens * (1.0 - choice.cached)
        lease = Lease(self, worker, choice, tokens, key.patches, now)
        if self.observer is not None:
            self.observer.on_start(worker, policy.name, choice)
        return lease

    def finish(self, lease: Lease, outcome: Outcome, now: float) -> None:
        lease.release(outcome, now)
        worker = lease.worker
        if self.observer is not None:
            self.observer.on_finish(worker, outcome, now - lease.started_at, lease.first_byte_s())
        if worker.removing and self.on_idle is not None and worker.load.own.requests == 0:
            self.on_idle(worker)

    def _candidates(self, key: RouteKey, now: float, exclude: frozenset[str]) -> list[Worker]:
        by_model = len(self._models) > 1 and key.model is not None
        return [
            worker
            for worker in self.workers
            if worker.health.healthy
            and not worker.draining
            and (worker.breaker.state is BreakerState.CLOSED or worker.breaker.allows(now))
            and worker.id not in exclude
            and not (by_model and worker.spec.model_id not in (None, key.model))
        ]

    def _unavailable(self, key: RouteKey, now: float, exclude: frozenset[str]) -> UnavailableError | NotFoundError:
        """The reason in words, because 'no worker' alone sends people hunting."""
        if len(self._models) > 1 and key.model is not None and key.model not in self._models:
            names = ", ".join(sorted(self._models))
            return NotFoundError(
                f"no {self.role} worker serves model {key.model!r}; models here: {names}", param="model"
            )
        if not self.workers:
            return UnavailableError(f"no {self.role} worker is registered", retry_after_s=5)
        reasons: dict[str, int] = {}
        for worker in self.workers:
            reason = why_not(worker, now, exclude)
            reasons[reason] = reasons.get(reason, 0) + 1
        detail = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return UnavailableError(f"no {self.role} worker can take the request: {detail}", retry_after_s=1)


def why_not(worker: Worker, now: float, exclude: frozenset[str] = NOBODY) -> str:
    """Why a worker takes no request now; "available" when it does."""
    if worker.draining:
        return "draining"
    if not worker.health.healthy:
        return "unhealthy"
    if not worker.breaker.allows(now):
        return "with the circuit breaker open"
    if worker.id in exclude:
        return "already tried"
    return "available"


class Registry:
    """All pools. `observer` sees every lease; `listeners` hear of each change of membership or state."""

    def __init__(self, policies: Mapping[Role, Policy], config: RegistryConfig) -> None:
        self.config = config
        self.pools = {role: WorkerPool(role, policy) for role, policy in policies.items()}
        self.workers: dict[str, Worker] = {}
        for pool in self.pools.values():
            pool.on_idle = self._drop

    def observe(self, observer: LeaseObserver) -> None:
        for pool in self.pools.values():
            pool.observer = observer

    def select(
        self, role: Role, key: RouteKey = EMPTY_KEY, now: float = 0.0, exclude: frozenset[str] = NOBODY
    ) -> Lease:
        """Choose a worker and take it. Raises `UnavailableError` (503) or `NotFoundError` (404: unknown model)."""
        return self.pools[role].select(key, now, exclude)

    def add(self, spec: WorkerSpec, now: float) -> Worker:
        """Add a worker, or take the one at the same URL and role back into service with the new spec."""
        known = self.workers.get(spec.id)
        if known is not None:
            self._rejoin(known, spec, now)
            return known
        worker = Worker(
            spec,
            slot=self._free_slot(),
            breaker=Breaker(self.config.breaker),
            health=HealthState(self.config.health),
            load=self._load_view(spec.role),
            now=now,
        )
        self.workers[worker.id] = worker
        self._rebuild(spec.role)
        return worker

    def remove(self, worker_id: str, now: float) -> Worker:
        """Take no new requests to the worker, and forget it once its last one has ended."""
        worker = self.get(worker_id)
        worker.draining = worker.removing = True
        if worker.load.own.requests == 0:
            self._drop(worker)
        return worker

    def drain(self, worker_id: str, draining: bool = True) -> Worker:
        worker = self.get(worker_id)
        worker.draining = draining
        return worker

    def get(self, worker_id: str) -> Worker:
        try:
            return self.workers[worker_id]
        except KeyError:
            raise NotFoundError(f"no worker {worker_id!r}", code="WORKER_NOT_FOUND") from None

    def in_role(self, role: Role) -> tuple[Worker, ...]:
        pool = self.pools.get(role)
        return pool.workers if pool else ()

    def _rejoin(self, worker: Worker, spec: WorkerSpec, now: float) -> None:
        worker.spec = spec
        worker.draining = worker.removing = False
        worker.heartbeat_at = now
        self._rebuild(spec.role)

    def _drop(self, worker: Worker) -> None:
        self.workers.pop(worker.id, None)
        self._rebuild(worker.role)

    def _rebuild(self, role: Role) -> None:
        self.pools[role].set_workers(worker for worker in self.workers.values() if worker.role is role)

    def _free_slot(self) -> int:
        used = {worker.slot for worker in self.workers.values()}
        return next(slot for slot in range(len(used) + 1) if slot not in used)

    def _load_view(self, role: Role) -> LoadView:
        if role is Role.ENCODE:
            return LoadView(by_patches=True)
        return LoadView(request_weight=self.config.decode_request_tokens if role is Role.DECODE else 1.0)
