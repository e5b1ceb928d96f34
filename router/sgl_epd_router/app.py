"""The router process: build everything from the configuration, serve, and stop in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Sequence

from sgl_epd.net.buffers import keep_freed_memory
from sgl_epd.net.client import ClientLimits, HttpClient
from sgl_epd.net.server import HttpServer, ServerLimits
from sgl_epd_router.abort_api import AbortApi
from sgl_epd_router.admin import Admin, AdminDefaults
from sgl_epd_router.admission import AdmissionConfig
from sgl_epd_router.api import Api
from sgl_epd_router.apis import CHAT_API, COMPLETION_API, GENERATE_API, GenerationApi
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.attachment import Attachment, LocalAttachment
from sgl_epd_router.auth import Auth, admin_keys
from sgl_epd_router.build import build_registry, worker_key
from sgl_epd_router.cancel import Aborter, RequestIds
from sgl_epd_router.commands import PoolControl
from sgl_epd_router.context import RouterContext
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.deadlines import Deadlines
from sgl_epd_router.dispatch import Dispatcher
from sgl_epd_router.gate import Gate
from sgl_epd_router.health_api import HealthApi
from sgl_epd_router.info import Info
from sgl_epd_router.leg_spans import LegSpans
from sgl_epd_router.metrics import RouterMetrics
from sgl_epd_router.metrics_api import metrics_api, start_metrics_server
from sgl_epd_router.proxy import Proxy
from sgl_epd_router.ratelimit import RateLimitConfig, RateLimiter
from sgl_epd_router.registry import Registry
from sgl_epd_router.responses_api import ResponsesApi
from sgl_epd_router.retry import Retrier, RetryConfig
from sgl_epd_router.routes import Handler, Route
from sgl_epd_router.ssrf import WorkerGuard
from sgl_epd_router.tls import client_context, server_context
from sgl_epd_router.tracing import make_tracer

logger = logging.getLogger(__name__)


def make_context(config: RouterConfig, client: HttpClient, board: CounterBoard) -> RouterContext:
    """Everything that handlers share, from the flags."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    metrics = RouterMetrics(config.prometheus_duration_buckets)
    registry = build_registry(config, board)
    tracer = make_tracer(config.enable_trace, config.otlp_traces_endpoint)
    registry.observe(metrics, *([LegSpans()] if tracer else []))
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
        tracer=tracer,
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


def make_routes(context: RouterContext, attachment: Attachment) -> list[Route]:
    dispatcher = Dispatcher(context)

    def generation(api: GenerationApi) -> dict[str, Handler]:
        return {"POST": lambda exchange: dispatcher.serve(exchange, api)}

    return [
        Route("/v1/chat/completions", generation(CHAT_API)),
        Route("/v1/completions", generation(COMPLETION_API)),
        Route("/generate", generation(GENERATE_API)),
        *ResponsesApi(context).routes(),
        *Proxy(context).routes(),
        *Info(context).routes(),
        *HealthApi(context).routes(),
        *AbortApi(attachment.control).routes(),
        *make_admin(context, attachment.control).routes(),
        *metrics_api(context, attachment).routes(),
    ]


def make_admin(context: RouterContext, control: PoolControl) -> Admin:
    config = context.config
    defaults = AdminDefaults(worker_key(config), config.encoder_bootstrap_port)
    return Admin(context.registry, control, context.gate, WorkerGuard(config.worker_networks), defaults, context.clock)


class RouterApp:
    """One router process. `start` and `stop` may be used inside tests too.

    `attach` decides who owns the pools, and `board` where the counters of in-flight work lie.
    """

    def __init__(
        self,
        config: RouterConfig,
        attach: Callable[[RouterContext], Attachment] = LocalAttachment,
        board: CounterBoard | None = None,
    ) -> None:
        self.config = config
        limits = ClientLimits(
            connect_timeout_s=config.connect_timeout_secs, idle_timeout_s=config.upstream_pool_idle_timeout_secs
        )
        self.client = HttpClient(limits=limits, tls=client_context(config))
        self.context = make_context(config, self.client, board or CounterBoard())
        self.attachment = attach(self.context)
        self.api = Api(self.context, make_routes(self.context, self.attachment))
        self.server = HttpServer(
            self.api.handle,
            limits=ServerLimits(
                max_body_bytes=config.max_payload_size, body_stall_timeout_s=config.stream_body_stall_timeout_secs
            ),
            check_head=self.api.check_head,
        )
        self.port = 0

    @property
    def registry(self) -> Registry:
        return self.context.registry

    async def start(self, sockets: Sequence[socket.socket] = ()) -> int:
        """Serve on `sockets`, or on the configured address; returns the port."""
        await self.attachment.start()
        tls = server_context(self.config)
        for sock in sockets:
            self.port = await self.server.listen_on(sock, tls=tls)
        if not sockets:
            self.port = await self.server.listen(self.config.host, self.config.port, tls=tls)
            logger.info("router listens on %s:%d", self.config.host, self.port)
        return self.port

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no new requests, let running ones end for `grace_s`, cut the rest."""
        self.context.gate.draining = True
        await self.server.close(self.config.shutdown_grace_period_secs if grace_s is None else grace_s)
        await self.attachment.stop()
        await self.client.close()
        if self.context.tracer is not None:
            self.context.tracer.close()


def settle_memory() -> None:
    """What has been made so far stays: the garbage collector shall leave it alone, and come less often.

    Requests leave no cycles behind (`test_memory.py`), so its visits find nothing and cost some percent of the CPU.
    """
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def serve(config: RouterConfig) -> None:
    """Run until SIGINT or SIGTERM, then drain."""
    app = RouterApp(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    metrics = await start_metrics_server(config, metrics_api(app.context, app.attachment))
    await app.start()
    settle_memory()
    await stop.wait()
    await app.stop()
    if metrics is not None:
        await metrics.close()
