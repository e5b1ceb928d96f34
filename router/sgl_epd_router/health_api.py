"""Is the router alive, is it ready, do the workers generate: the routes that load balancers ask."""

from __future__ import annotations

import asyncio

from sgl_epd.errors import TransportError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_json, respond_text
from sgl_epd_router.cancel import worker_headers
from sgl_epd_router.context import RouterContext
from sgl_epd_router.routes import Access, Route
from sgl_epd_router.worker import Role, Worker

_GENERATE_TIMEOUT_S = 30.0


class HealthApi:
    """Serves these routes; all but `/health_generate` without bothering a worker."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("/liveness", {"GET": self.liveness}, Access.OPEN),
            Route("/health", {"GET": self.liveness}, Access.OPEN),
            Route("/readiness", {"GET": self.readiness}, Access.OPEN),
            Route("/health_generate", {"GET": self.health_generate}),
        ]

    async def liveness(self, exchange: Exchange) -> None:
        respond_text(exchange, "OK")

    async def readiness(self, exchange: Exchange) -> None:
        """Ready when each stage that a request must pass has a worker."""
        context = self._context
        now = context.clock()
        ready = {role: context.registry.ready(role, now) for role in Role}
        reason = self._not_ready_reason(ready)
        counts = {"healthy_workers": sum(ready.values()), "total_workers": len(context.registry.workers)}
        if reason is None:
            respond_json(exchange, {"status": "ready", **counts})
        else:
            respond_json(exchange, {"status": "not ready", "reason": reason, **counts}, 503)

    def _not_ready_reason(self, ready: dict[Role, int]) -> str | None:
        if self._context.gate.draining:
            return "the router is draining"
        if ready[Role.REGULAR]:
            return None
        needed = (Role.PREFILL, Role.DECODE) if self._context.staged else (Role.REGULAR,)
        missing = [role.value for role in needed if not ready[role]]
        return f"no healthy {' and no healthy '.join(missing)} worker" if missing else None

    async def health_generate(self, exchange: Exchange) -> None:
        """Let every worker generate; 200 when each role that has workers has one that can."""
        workers = list(self._context.registry.workers.values())
        results = await asyncio.gather(*[self._generates(worker) for worker in workers])
        report = {worker.url: ok for worker, ok in zip(workers, results, strict=True)}
        roles = {worker.role for worker in workers}
        good = {worker.role for worker in workers if report[worker.url]}
        status = 200 if workers and roles == good else 503
        respond_json(exchange, {"status": "ok" if status == 200 else "unhealthy", "workers": report}, status)

    async def _generates(self, worker: Worker) -> bool:
        try:
            reply = await self._context.client.fetch(
                "GET", worker.url + "/health_generate", headers=worker_headers(worker), timeout_s=_GENERATE_TIMEOUT_S
            )
        except (TransportError, TimeoutError):
            return False
        return reply.status == 200
