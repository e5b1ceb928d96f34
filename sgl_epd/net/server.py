"""HTTP/1.1 server: one protocol object a connection, one task a request.

The head goes through llhttp (`httptools`, strict); a body with `Content-Length` bypasses the parser: the kernel writes
it straight into one buffer of its final size, which is what makes bodies of megabytes cheap.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from time import time as wall_clock

from sgl_epd.errors import PayloadTooLargeError, RequestError
from sgl_epd.net.connection import ServerConnection
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_error

logger = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]
HeadCheck = Callable[[Exchange], None]
_SWEEP_S = 0.5
_END_S = 5.0
"""How long cancelled handlers and cut connections may take to end."""


@dataclass(frozen=True)
class ServerLimits:
    """What a client may use up. Sizes in bytes."""

    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 512 * 1024 * 1024
    idle_timeout_s: float = 75.0
    head_timeout_s: float = 20.0
    body_stall_timeout_s: float = 60.0
    write_stall_timeout_s: float = 300.0


class HttpServer:
    """Serves `handler` on one or more sockets.

    `check_head` runs before the body is read and may raise a `RequestError` (authentication, size) to refuse at once.
    """

    def __init__(
        self, handler: Handler, *, limits: ServerLimits | None = None, check_head: HeadCheck | None = None
    ) -> None:
        self.handler = handler
        self.limits = limits or ServerLimits()
        self.check_head = check_head
        self.connections: set[ServerConnection] = set()
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._date = b""
        self._date_at = 0
        # One scratch buffer for all connections: a read fills it and is consumed before the next one starts.
        self.scratch = memoryview(bytearray(256 * 1024))

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        backlog: int = 2048,
    ) -> int:
        """Start accepting; returns the port (useful when 0 was asked for)."""
        server = await self._loop.create_server(
            self._make_connection, host, port, ssl=tls, reuse_port=reuse_port or None, backlog=backlog
        )
        return self._started(server)

    async def listen_on(self, sock: socket.socket, *, tls: ssl.SSLContext | None = None, backlog: int = 2048) -> int:
        """Start accepting on a bound socket."""
        return self._started(await self._loop.create_server(self._make_connection, sock=sock, ssl=tls, backlog=backlog))

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting, let running requests finish for `grace_s`, then cut the rest."""
        self.closing = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        give_up_at = self._loop.time() + grace_s
        while self.connections and self._loop.time() < give_up_at:
            await asyncio.sleep(0.02)
        tasks = [c.task for c in self.connections if c.task is not None]
        for connection in list(self.connections):
            connection.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
        give_up_at = self._loop.time() + _END_S
        while self.connections and self._loop.time() < give_up_at:  # transports report their end a little later
            await asyncio.sleep(0)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    @property
    def active_requests(self) -> int:
        return sum(c.task is not None for c in self.connections)

    def date_header(self) -> bytes:
        now = int(wall_clock())
        if now != self._date_at:
            self._date_at = now
            self._date = b"date: " + formatdate(now, usegmt=True).encode("ascii") + b"\r\n"
        return self._date

    def refuse_body(self, length: int) -> RequestError | None:
        """The error for a body of `length` bytes, if it is too large."""
        limit = self.limits.max_body_bytes
        if length <= limit:
            return None
        return PayloadTooLargeError(f"the request body has {length} bytes or more, the limit is {limit}")

    async def run(self, exchange: Exchange) -> None:
        """One request, from a complete body to the end of its answer."""
        try:
            await self.handler(exchange)
        except asyncio.CancelledError:
            # The client is gone or the server is closing: nobody is left to answer to.
            exchange.abort()
        except RequestError as error:
            respond_error(exchange, error)
        except Exception:
            logger.exception("unexpected error while handling %s %s", exchange.method, exchange.path)
            respond_error(exchange, RequestError("internal error in the server; see its log"))
        else:
            if not exchange.ended:
                logger.error("the handler of %s %s ended without an answer", exchange.method, exchange.path)
                respond_error(exchange, RequestError("the server produced no answer"))

    def _started(self, server: asyncio.Server) -> int:
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _make_connection(self) -> ServerConnection:
        return ServerConnection(self, self._loop)

    def _sweep(self) -> None:
        """Enforce the timeouts of all connections: cheaper than a timer for each."""
        now = self._loop.time()
        for connection in list(self.connections):
            connection.check_deadline(now)
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
