"""HTTP/1.1 client: keep-alive pools per origin, answers delivered to a sink as they arrive.

`HttpClient.send` returns at once; the answer's head, data, end or error reach the given `Sink` as callbacks, so that
one task can watch several calls without a task for each. `HttpClient.fetch` is the convenient form on top.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sgl_epd.errors import ConnectError, TransportError
from sgl_epd.net.call import Buffer, Call, Sink
from sgl_epd.net.client_connection import ClientConnection
from sgl_epd.net.headers import RawHeaders, encode_headers
from sgl_epd.net.origin import Origin


@dataclass(frozen=True)
class ClientLimits:
    """`idle_timeout_s` must stay below the servers' keep-alive (5 s in SGLang): else requests meet dead sockets."""

    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 3.0
    max_idle_per_origin: int = 1024


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    status: int
    headers: RawHeaders
    body: bytes


class HttpClient:
    """Connections to any number of origins. Must be made inside a running event loop."""

    def __init__(self, *, limits: ClientLimits | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.limits = limits or ClientLimits()
        self.connections: set[ClientConnection] = set()
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._origins: dict[str, Origin] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper = self._loop.call_later(1.0, self._sweep)
        self.closed = False

    def origin(self, url: str) -> Origin:
        """The pool for `url`'s scheme, host and port. Raises ValueError for what is not an HTTP URL."""
        origin = self._origins.get(url)
        if origin is None:
            made = Origin(url)
            origin = self._origins.setdefault(made.url, made)
            self._origins[url] = origin
        return origin

    def forget(self, url: str) -> None:
        """Close the idle connections of an origin that is no longer used."""
        origin = self._origins.pop(url, None)
        if origin is not None:
            self._origins = {key: value for key, value in self._origins.items() if value is not origin}
            while origin.idle:
                origin.idle.pop().close()

    def send(
        self,
        origin: Origin,
        method: str,
        target: str,
        sink: Sink,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        encoded_headers: bytes = b"",
        body: Sequence[Buffer] = (),
    ) -> Call:
        """Send a request; `body` is written piece by piece without being joined.

        `encoded_headers` are ready-made header lines, for callers that send the same fields to several origins.
        Callbacks never come from inside this call.
        """
        length = sum(map(len, body))
        head = f"{method} {target} HTTP/1.1\r\n".encode("latin-1")
        head += b"host: " + origin.host_header + b"\r\n" + encoded_headers + encode_headers(headers)
        if length or method in ("POST", "PUT", "PATCH"):
            head += b"content-length: %d\r\n\r\n" % length
        else:
            head += b"\r\n"
        call = Call(self, origin, [head, *body], sink)
        call.start()
        return call

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        timeout_s: float = 30.0,
    ) -> Response:
        """Send a request and wait for the whole answer. Raises `TransportError`, and TimeoutError after `timeout_s`."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        origin = self.origin(f"{parts.scheme}://{parts.netloc}")
        sink = _Collector(self._loop)
        call = self.send(origin, method, target, sink, headers=headers, body=[body] if body else ())
        try:
            async with asyncio.timeout(timeout_s):
                return await sink.result
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close all connections and end all pending connects."""
        self.closed = True
        self._sweeper.cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.connections):
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        # Let the transports report their end, so that no socket outlives the client.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self.connections:
                    await asyncio.sleep(0)

    # -- for Call and ClientConnection -----------------------------------------------------------------------------

    def take_idle(self, origin: Origin) -> ClientConnection | None:
        now = self._loop.time()
        while origin.idle:
            connection = origin.idle.pop()
            connection.idle_s = now - connection.idle_since
            if connection.usable and connection.idle_s < self.limits.idle_timeout_s:
                return connection
            connection.close()
        return None

    def give_back(self, connection: ClientConnection) -> None:
        idle = connection.origin.idle
        if self.closed or len(idle) >= self.limits.max_idle_per_origin:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        idle.append(connection)

    async def connect(self, origin: Origin) -> ClientConnection:
        connection = ClientConnection(self, origin)
        tls = self._tls_context() if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                await self._loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        except TimeoutError:
            raise ConnectError(f"no connection to {origin.url} within {self.limits.connect_timeout_s} s") from None
        except (OSError, ssl.SSLError) as error:
            raise ConnectError(f"cannot connect to {origin.url}: {error}") from error
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()  # reads the system's certificates: once is enough
        return self._tls

    def spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _sweep(self) -> None:
        """Close what has been idle too long, before the server does."""
        oldest = self._loop.time() - self.limits.idle_timeout_s
        for origin in set(self._origins.values()):
            while origin.idle and origin.idle[0].idle_since < oldest:
                origin.idle.popleft().close()
        self._sweeper = self._loop.call_later(1.0, self._sweep)


class _Collector:
    """A sink that gathers a whole answer for `fetch`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.result: asyncio.Future[Response] = loop.create_future()
        self._status = 0
        self._headers: RawHeaders = []
        self._body = bytearray()

    def on_head(self, status: int, headers: RawHeaders) -> None:
        self._status = status
        self._headers = headers

    def on_data(self, data: bytes) -> None:
        self._body += data

    def on_end(self) -> None:
        if not self.result.done():
            self.result.set_result(Response(self._status, self._headers, bytes(self._body)))

    def on_error(self, error: TransportError) -> None:
        if not self.result.done():
            self.result.set_exception(error)
