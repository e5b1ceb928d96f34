"""The router process: build everything from the configuration, serve, and stop in order."""

from __future__ import annotations

import asyncio
import logging
import signal

from sgl_epd.net.client import ClientLimits, HttpClient
from sgl_epd.net.server import HttpServer, ServerLimits
from sgl_epd_router.api import Api
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.build import build_registry
from sgl_epd_router.cancel import Aborter, RequestIds
from sgl_epd_router.context import RouterContext
from sgl_epd_router.deadlines import Deadlines
from sgl_epd_router.retry import Retrier, RetryConfig

logger = logging.getLogger(__name__)


class RouterApp:
    """One router process. `start` and `stop` may be used inside tests too."""

    def __init__(self, config: RouterConfig) -> None:
        loop = asyncio.get_running_loop()
        self.config = config
        limits = ClientLimits(
            connect_timeout_s=config.connect_timeout_secs, idle_timeout_s=config.upstream_pool_idle_timeout_secs
        )
        self.client = HttpClient(limits=limits)
        self.registry = build_registry(config, loop.time())
        self.context = RouterContext(
            config=config,
            registry=self.registry,
            client=self.client,
            loop=loop,
            clock=loop.time,
            deadlines=Deadlines.from_flags(config),
            retrier=Retrier(RetryConfig(), loop.time()),
            aborter=Aborter(self.client, loop),
            requests=RequestIds(),
        )
        self.api = Api(self.context)
        self.server = HttpServer(
            self.api.handle,
            limits=ServerLimits(
                max_body_bytes=config.max_payload_size, body_stall_timeout_s=config.stream_body_stall_timeout_secs
            ),
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
