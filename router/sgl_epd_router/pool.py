"""The workers of one role under one policy: who may take a request now, and who takes this one."""

from __future__ import annotations

from collections.abc import Iterable

from sgl_epd.errors import NotFoundError, UnavailableError
from sgl_epd_router.breaker import BreakerState
from sgl_epd_router.lease import Lease, LeaseObserver
from sgl_epd_router.policies import Policy
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import Role, Worker

NOBODY: frozenset[str] = frozenset()


class WorkerPool:
    """`workers` is in order of id, which the policies rely on."""

    def __init__(self, role: Role, policy: Policy) -> None:
        self.role = role
        self.policy = policy
        self.workers: tuple[Worker, ...] = ()
        self.observers: tuple[LeaseObserver, ...] = ()
        self._models: frozenset[str] = frozenset()

    def set_workers(self, workers: Iterable[Worker]) -> None:
        self.workers = tuple(sorted(workers, key=lambda worker: worker.id))
        self._models = frozenset(worker.model_id for worker in self.workers if worker.model_id)

    def select(self, key: RouteKey, now: float, exclude: frozenset[str] = NOBODY) -> Lease:
        """Take a lease on the policy's choice. Raises `UnavailableError`, or `NotFoundError` for an unknown model."""
        candidates = self._candidates(key, now, exclude)
        if not candidates:
            raise self._unavailable(key, now, exclude)
        policy = self.policy
        if policy.uses_load:
            for worker in candidates:
                worker.refresh(now)
        choice = policy.choose(candidates, key, now)
        return Lease(
            candidates[choice.pick],
            choice,
            policy.name,
            tokens=int(key.prompt_tokens * (1.0 - choice.cached)),
            patches=key.patches,
            now=now,
            observers=self.observers,
        )

    def _candidates(self, key: RouteKey, now: float, exclude: frozenset[str]) -> list[Worker]:
        # A pool whose workers serve one model takes any name: SGLang does, and clients use aliases and adapters.
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
        """The reason in words, because "no worker" alone sends people hunting."""
        serving = [worker for worker in self.workers if worker.model_id in (None, key.model)]
        if len(self._models) > 1 and key.model is not None and not serving:
            names = ", ".join(sorted(self._models))
            return NotFoundError(f"no {self.role} worker serves {key.model!r}; models here: {names}", param="model")
        if not self.workers:
            return UnavailableError(f"no {self.role} worker is registered", retry_after_s=5)
        reasons: dict[str, int] = {}
        for worker in self.workers:
            reason = why_not(worker, now, exclude)
            reasons[reason] = reasons.get(reason, 0) + 1
        detail = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return UnavailableError(f"no {self.role} worker can take the request: {detail}", retry_after_s=1)


def why_not(worker: Worker, now: float, exclude: frozenset[str] = NOBODY) -> str:
    """Why a worker takes no request now, in words that follow its number."""
    if worker.draining:
        return "draining"
    if not worker.health.healthy:
        return "unhealthy"
    if not worker.breaker.allows(now):
        return "with an open circuit breaker"
    return "already tried" if worker.id in exclude else "of another model"
