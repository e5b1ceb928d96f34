"""What every request handler of the router shares."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from sgl_epd.net.client import HttpClient
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.auth import Auth
from sgl_epd_router.cancel import Aborter, RequestIds
from sgl_epd_router.deadlines import Deadlines
from sgl_epd_router.gate import Gate
from sgl_epd_router.metrics import RouterMetrics
from sgl_epd_router.ratelimit import RateLimiter
from sgl_epd_router.registry import Registry
from sgl_epd_router.retry import Retrier
from sgl_epd_router.tracing import Tracer
from sgl_epd_router.worker import Role


@dataclasses.dataclass(slots=True)
class RouterContext:
    """Made once a process by `app`."""

    config: RouterConfig
    registry: Registry
    client: HttpClient
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    deadlines: Deadlines
    retrier: Retrier
    aborter: Aborter
    requests: RequestIds
    auth: Auth
    gate: Gate
    limiter: RateLimiter | None
    metrics: RouterMetrics
    tracer: Tracer | None

    @property
    def staged(self) -> bool:
        """Whether generation goes through prefill and decode workers; aggregated ones beside them are the reserve."""
        registry = self.registry
        if registry.in_role(Role.PREFILL) and registry.in_role(Role.DECODE):
            return True
        if registry.in_role(Role.REGULAR):
            return False
        named = self.config.pd_disaggregation or self.config.epd_disaggregation
        return named or bool(registry.in_role(Role.PREFILL) or registry.in_role(Role.DECODE))
