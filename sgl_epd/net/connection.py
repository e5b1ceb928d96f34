"""The server's side of one client connection: framing, limits, back-pressure, disconnects.

States: reading a head; reading a body (of known length, or chunked); busy with a request, whose handler runs in a task.
Bytes that arrive while busy (pipelining) wait in a small bounded buffer, so that a disconnect is noticed meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import httptools

from sgl_epd.errors import BadRequestError, RequestError, RequestTimeoutError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_error

if TYPE_CHECKING:
    from sgl_epd.net.server import HttpServer

_PIPELINE_LIMIT = 256 * 1024
_NEVER = float("inf")


class HeaderFieldsTooLargeError(RequestError):
    status = 431
    error_type = "RequestHeaderFieldsTooLarge"


class NotImplementedByServerError(RequestError):
    status = 501
    error_type = "NotImplementedError"


class State(Enum):
    HEAD = 0
    BODY = 1
    CHUNKED = 2
    BUSY = 3
    REFUSED = 4


class ServerConnection(asyncio.BufferedProtocol):
    """Created for each accepted connection by `HttpServer`."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._state = State.HEAD
        self._parser: Any = None
        self._exchange: Exchange | None = None
        self._pending = bytearray()
        self._body = memoryview(b"")
        self._filled = 0
        self._head_bytes = 0
        self._chunks: bytearray | None = None
        self._complete = False
        self._excess = False
        self._deadline = loop.time() + server.limits.head_timeout_s
        self._drained: asyncio.Future[None] | None = None
        self._reading_paused = False
        self.write_paused = False
        self.connected = False
        self.task: asyncio.Task[None] | None = None
        self._peer = ""

    # -- transport callbacks -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.connected = True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connected = False
        self._deadline = _NEVER
        self._server.connections.discard(self)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.task is not None:
            self.task.cancel()

    def eof_received(self) -> bool:
        # A client that stops sending is treated as gone, as nginx and uvicorn do; the transport closes itself.
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._body[self._filled :] if self._state is State.BODY else self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is State.BODY:
            self._filled += nbytes
            self._deadline = self._loop.time() + self._limits.body_stall_timeout_s
            if self._filled == len(self._body):
                self._body_done()
            return
        self._feed(self._server.scratch[:nbytes])

    def pause_writing(self) -> None:
        self.write_paused = True
        self._deadline = self._loop.time() + self._limits.write_stall_timeout_s

    def resume_writing(self) -> None:
        self.write_paused = False
        self._deadline = _NEVER if self._state is State.BUSY else self._idle_deadline()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # -- for Exchange and HttpServer -----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._transport is not None and self.connected:
            self._transport.write(data)

    def send_parts(self, parts: list[bytes]) -> None:
        if self._transport is not None and self.connected:
            self._transport.writelines(parts)

    async def drain(self) -> None:
        while self.write_paused and self.connected:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await self._drained

    def abort(self) -> None:
        if self._transport is not None and self.connected:
            self._transport.abort()

    def close_if_idle(self) -> None:
        if self._exchange is not None:
            self._exchange.keep_alive = False
        if self._state is State.HEAD and self._transport is not None:
            self._transport.close()

    def date_header(self) -> bytes:
        return self._server.date_header()

    def check_deadline(self, now: float) -> None:
        if now < self._deadline:
            return
        if self.write_paused or (self._state is State.HEAD and self._head_bytes == 0) or self._state is State.REFUSED:
            self._deadline = _NEVER
            self.abort()
            return
        self._refuse(RequestTimeoutError("the request did not arrive in time"))

    def exchange_done(self, exchange: Exchange) -> None:
        """The answer has been written: go on with the next request, or close."""
        if not self.connected or self._transport is None:
            return
        if not exchange.keep_alive or self._server.closing or self._state is State.REFUSED:
            self._linger_or_close()
            return
        self._state = State.HEAD
        self._exchange = None
        self.task = None
        self._deadline = self._idle_deadline()
        self._set_reading(True)
        if self._pending:
            # From a fresh stack: a pipelining client must not make us recurse.
            self._loop.call_soon(self._feed, b"")

    # -- reading -------------------------------------------------------------------------------------------------

    def _feed(self, data: memoryview | bytes) -> None:
        if self._state is State.HEAD:
            self._feed_head(data)
        elif self._state is State.CHUNKED:
            self._feed_parser(data)
        elif self._state is State.BUSY:
            self._pending += data
            if len(self._pending) > _PIPELINE_LIMIT:
                self._set_reading(False)

    def _feed_head(self, data: memoryview | bytes) -> None:
        if self._head_bytes == 0:
            self._deadline = self._loop.time() + self._limits.head_timeout_s
        buffer: bytes | bytearray = bytes(data)
        if self._pending:
            self._pending += data
            buffer = self._pending
        start = 0
        while buffer.startswith(b"\r\n", start):  # empty lines before a request are to be ignored (RFC 9112, 2.2)
            start += 2
        end = buffer.find(b"\r\n\r\n", max(start, self._head_bytes - 3))
        if end < 0:
            self._head_bytes = len(buffer)
            if self._head_bytes > self._limits.max_head_bytes:
                self._refuse(HeaderFieldsTooLargeError(f"the head is larger than {self._limits.max_head_bytes} bytes"))
            elif not self._pending:
                self._pending += data
            return
        head = bytes(buffer[start : end + 4])
        rest = bytes(buffer[end + 4 :])
        self._pending = bytearray()
        self._head_bytes = 0
        if len(head) > self._limits.max_head_bytes:
            self._refuse(HeaderFieldsTooLargeError(f"the head is larger than {self._limits.max_head_bytes} bytes"))
            return
        self._parse_head(head, rest)

    def _parse_head(self, head: bytes, rest: bytes) -> None:
        self._reset_parser()
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # an offer that may be ignored (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            self._refuse(BadRequestError(f"malformed request: {error}"))
            return
        if self._exchange is None:
            self._refuse(BadRequestError("malformed request head"))
            return
        try:
            length = self._body_length(self._exchange)
            if length > 0 and (refusal := self._server.refuse_body(length)):
                raise refusal
        except RequestError as error:
            self._refuse(error)
            return
        if self._passes(self._exchange, length, rest):
            self._start_body(length, rest)

    def _passes(self, exchange: Exchange, length: int, rest: bytes) -> bool:
        """Ask `check_head`; a refusal ends the connection only if a body is still on its way."""
        if self._server.check_head is None:
            return True
        try:
            self._server.check_head(exchange)
        except RequestError as error:
            if not 0 <= length <= len(rest):
                self._refuse(error)
                return False
            self._pending += memoryview(rest)[length:]
            self._state = State.BUSY
            respond_error(exchange, error)
            return False
        return True

    def _reset_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._exchange = None
        self._complete = self._excess = False
        self._chunks = None

    def _body_length(self, exchange: Exchange) -> int:
        """Length of the body; -1 when it is chunked. Refuses what could be read in two ways (request smuggling)."""
        length: bytes | None = None
        coding: bytes | None = None
        hosts = 0
        for name, value in exchange.headers:
            if name == b"content-length":
                if length is not None:
                    raise BadRequestError("more than one Content-Length")
                length = value
            elif name == b"transfer-encoding":
                if coding is not None:
                    raise BadRequestError("more than one Transfer-Encoding")
                coding = value
            elif name == b"host":
                hosts += 1
        if hosts > 1 or (hosts == 0 and exchange.version == "1.1"):
            raise BadRequestError("exactly one Host field is required")
        if coding is not None:
            if length is not None or exchange.version == "1.0":
                raise BadRequestError("Transfer-Encoding beside Content-Length or in HTTP/1.0")
            if coding.strip().lower() != b"chunked":
                raise NotImplementedByServerError("the only transfer coding that is understood is chunked")
            if self._parser.should_upgrade():
                raise NotImplementedByServerError("no upgrade with a chunked body")
            return -1
        if length is None:
            return 0
        if not length.isdigit() or len(length) > 18:
            raise BadRequestError("invalid Content-Length")
        return int(length)

    def _start_body(self, length: int, rest: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        if length == 0 or 0 < length <= len(rest):
            self._pending += memoryview(rest)[length:]
            exchange.body = rest[:length]
            self._start_handler(exchange)
            return
        if not rest and (exchange.header(b"expect") or b"").lower() == b"100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._deadline = self._loop.time() + self._limits.body_stall_timeout_s
        if length < 0:
            self._state = State.CHUNKED
            self._chunks = bytearray()
            if rest:
                self._feed_parser(rest)
            return
        self._state = State.BODY
        buffer = bytearray(length)
        exchange.body = buffer
        self._body = memoryview(buffer)
        self._body[: len(rest)] = rest
        self._filled = len(rest)

    def _body_done(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._body = memoryview(b"")
        self._filled = 0
        self._start_handler(exchange)

    def _feed_parser(self, data: memoryview | bytes) -> None:
        """A chunked body: rare, so it may pass through the parser and be copied."""
        self._deadline = self._loop.time() + self._limits.body_stall_timeout_s
        exchange = self._exchange
        assert exchange is not None and self._chunks is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(BadRequestError(f"malformed chunked body: {error}"))
            return
        if refusal := self._server.refuse_body(len(self._chunks)):
            self._refuse(refusal)
        elif self._complete:
            exchange.body = self._chunks
            if self._excess:
                # The parser has swallowed the start of a pipelined request: answer this one, then close.
                exchange.keep_alive = False
            self._start_handler(exchange)

    def _start_handler(self, exchange: Exchange) -> None:
        self._state = State.BUSY
        self._deadline = _NEVER
        self._chunks = None
        self._parser = None
        self.task = self._loop.create_task(self._server.run(exchange))

    # -- refusing and closing ------------------------------------------------------------------------------------

    def _refuse(self, error: RequestError) -> None:
        """Answer without having read the whole request, then close."""
        exchange = self._exchange or Exchange(self, "GET", b"/", "1.1", self._peer, self._loop.time())
        exchange.keep_alive = False
        self._exchange = exchange
        self._body = memoryview(b"")
        self._filled = 0
        self._chunks = None
        self._state = State.REFUSED
        respond_error(exchange, error)

    def _linger_or_close(self) -> None:
        """Close after the answer.

        After a refusal unread bytes may be on their way; closing at once would reset the connection and could destroy
        the answer before the client reads it. So: end our side, and discard what comes for a moment.
        """
        assert self._transport is not None
        self._exchange = None
        self.task = None
        if self._state is not State.REFUSED or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._deadline = self._loop.time() + 2.0
        self._set_reading(True)
        self._transport.write_eof()

    def _idle_deadline(self) -> float:
        return self._loop.time() + self._limits.idle_timeout_s

    def _set_reading(self, on: bool) -> None:
        if self._transport is None or self._reading_paused is not on:
            return
        self._reading_paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- parser callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._excess = True

    def on_url(self, url: bytes) -> None:
        if not self._complete:
            method = self._parser.get_method().decode("ascii")
            self._exchange = Exchange(self, method, url, "1.1", self._peer, self._loop.time())

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers arrive here too, after the head: they are dropped.
        if self._chunks is None and self._exchange is not None:
            self._exchange.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._chunks is None and self._exchange is not None:
            self._exchange.version = self._parser.get_http_version()
            self._exchange.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if self._chunks is not None and not self._complete:
            self._chunks += data

    def on_message_complete(self) -> None:
        if self._chunks is not None:
            self._complete = True
