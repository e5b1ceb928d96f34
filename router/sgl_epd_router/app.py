"""The router process: build everything from the configuration, serve, and stop in order."""

from __future__ import annotations

import asyncio
import logging
import signal

from sgl_epd.net.client import ClientLimits, HttpClient
from sgl_epd.net.server import HttpServer, ServerLimits
from sgl_epd_router.abort_api import AbortApi
from sgl_epd_router.admission import AdmissionConfig
from sgl_epd_router.api import Api
from sgl_epd_router.apis import CHAT_API, COMPLETION_API, GENERATE_API, GenerationApi
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.auth import Auth, admin_keys
from sgl_epd_router.build import build_registry
from sgl_epd_router.cancel import Aborter, RequestIds
from sgl_epd_router.context import RouterContext
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.deadlines import Deadlines
from sgl_epd_router.dispatch import Dispatcher
from sgl_epd_router.gate import Gate
from sgl_epd_router.health_api import HealthApi
from sgl_epd_router.info import Info
from sgl_epd_router.metrics import RouterMetrics
from sgl_epd_router.proxy import Proxy
from sgl_epd_router.ratelimit import RateLimitConfig, RateLimiter
from sgl_epd_router.retry import Retrier, RetryConfig
from sgl_epd_router.routes import Handler, Route
from sgl_epd_router.tracing import make_tracer

logger = logging.getLogger(__name__)


def make_context(config: RouterConfig, client: HttpClient, board: CounterBoard) -> RouterContext:
    """Everything that handlers share, from the flags."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    metrics = RouterMetrics(config.prometheus_duration_buckets)
    registry = build_registry(config, clock(), board)
    registry.observe(metrics)
    return RouterContext(
        config=config,
        registry=registry,
        client=client,
        loop=loop,
        clock=clock,
        deadlines=Deadlines.from_flags(config),
        retrier=Retrier(retry_config(config), clock()),
        aborter=Aborter(client, loop),
        requests=RequestIds(),
        auth=Auth(config.api_key, admin_keys(config.admin_api_key, config.control_plane_api_keys)),
        gate=Gate(admission_config(config), board),
        limiter=rate_limiter(config, board),
        metrics=metrics,
        tracer=make_tracer(config.enable_trace, config.otlp_traces_endpoint),
    )


def retry_config(config: RouterConfig) -> RetryConfig:
    return RetryConfig(
        max_retries=config.retry_max_retries,
        initial_backoff_s=config.retry_initial_backoff_ms / 1000,
        max_backoff_s=config.retry_max_backoff_ms / 1000,
        multiplier=config.retry_backoff_multiplier,
        jitter=config.retry_jitter_factor,
        budget_ratio=config.retry_budget_ratio,
        budget_per_s=config.retry_budget_per_sec,
        enabled=not config.disable_retries,
    )


def admission_config(config: RouterConfig) -> AdmissionConfig:
    return AdmissionConfig(
        max_concurrent=config.max_concurrent_requests,
        queue_size=config.queue_size,
        queue_timeout_s=config.queue_timeout_secs,
        priority_step_s=config.priority_step_secs,
    )


def rate_limiter(config: RouterConfig, board: CounterBoard) -> RateLimiter | None:
    per_s = config.rate_limit_tokens_per_second
    if per_s is None:
        return None
    return RateLimiter(RateLimitConfig(per_s, config.rate_limit_burst or max(1, round(per_s))), board)


def make_routes(context: RouterContext) -> list[Route]:
    """All routes but the control routes."""
    dispatcher = Dispatcher(context)

    def generation(api: GenerationApi) -> dict[str, Handler]:
        return {"POST": lambda exchange: dispatcher.serve(exchange, api)}

    return [
        Route("/v1/chat/completions", generation(CHAT_API)),
        Route("/v1/completions", generation(COMPLETION_API)),
        Route("/generate", generation(GENERATE_API)),
        *Proxy(context).routes(),
        *Info(context).routes(),
        *HealthApi(context).routes(),
        *AbortApi(context).routes(),
    ]


class RouterApp:
    """One router process. `start` and `stop` may be used inside tests too."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        limits = ClientLimits(
            connect_timeout_s=config.connect_timeout_secs, idle_timeout_s=config.upstream_pool_idle_timeout_secs
        )
        self.client = HttpClient(limits=limits)
        self.context = make_context(config, self.client, CounterBoard())
        self.api = Api(self.context, make_routes(self.context))
        self.server = HttpServer(
            self.api.handle,
            limits=ServerLimits(
                max_body_bytes=config.max_payload_size, body_stall_timeout_s=config.stream_body_stall_timeout_secs
            ),
            check_head=self.api.check_head,
        )
        self.port = 0

    async def start(self) -> int:
        self.port = await self.server.listen(self.config.host, self.config.port)
        logger.info("router listens on %s:%d", self.config.host, self.port)
        return self.port

    async def stop(self, grace_s: float | None = None) -> None:
        await self.server.close(self.config.shutdown_grace_period_secs if grace_s is None else grace_s)
        await self.client.close()


async def serve(config: RouterConfig) -> None:
    """Run until SIGINT or SIGTERM, then drain."""
    app = RouterApp(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    await app.start()
    await stop.wait()
    await app.stop()
