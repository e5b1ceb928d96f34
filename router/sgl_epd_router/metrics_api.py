"""`GET /metrics`, on the main port and, as upstream has it, on a port of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from sgl_epd.errors import ConfigError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.server import HttpServer
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.attachment import Attachment
from sgl_epd_router.context import RouterContext
from sgl_epd_router.metrics import CONTENT_TYPE, render
from sgl_epd_router.routes import Access, Route, RouteTable

logger = logging.getLogger(__name__)
DEFAULT_PORT = 29000


class MetricsApi:
    """`text` makes the answer: the sum over all router processes, and the state of the pools."""

    def __init__(self, text: Callable[[], Awaitable[bytes]]) -> None:
        self._text = text

    def routes(self) -> list[Route]:
        return [Route("/metrics", {"GET": self.metrics}, Access.OPEN)]

    async def metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, await self._text(), [(b"content-type", CONTENT_TYPE)])


def metrics_api(context: RouterContext, attachment: Attachment) -> MetricsApi:
    """For a process that serves requests."""

    async def text() -> bytes:
        snapshots = await attachment.gather()
        return render(context.metrics, snapshots, context.registry, context.gate.queue, context.clock())

    return MetricsApi(text)


async def start_metrics_server(config: RouterConfig, api: MetricsApi) -> HttpServer | None:
    """The second port. A default port that is taken is no reason not to start; one that was asked for is."""
    if config.prometheus_port == 0:
        return None
    table = RouteTable(api.routes())

    async def handle(exchange: Exchange) -> None:
        await table.handler(table.find(exchange.path), exchange.method)(exchange)

    server = HttpServer(handle)
    port = config.prometheus_port or DEFAULT_PORT
    try:
        await server.listen(config.prometheus_host, port)
    except OSError as error:
        await server.close()
        if config.prometheus_port is not None:
            raise ConfigError(f"--prometheus-port {port}: {error.strerror}") from error
        logger.warning("port %d is taken: metrics are on the main port only", port)
        return None
    return server
