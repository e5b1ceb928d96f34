"""The server's side of one client connection: framing, limits, back-pressure, disconnects.

States: reading a head; reading a body (of known length, or chunked); busy with a request, whose handler runs in a task;
refused. Bytes that arrive while busy (pipelining) wait in a bounded buffer: reading goes on so that a disconnect is
noticed.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import TYPE_CHECKING, cast

from sgl_epd.errors import RequestError, RequestTimeoutError
from sgl_epd.net.buffers import uninitialized
from sgl_epd.net.chunked import ChunkedBody
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.low_water import LowWater
from sgl_epd.net.pending import PendingBytes
from sgl_epd.net.replies import respond_error
from sgl_epd.net.request_head import CHUNKED, RequestHead

if TYPE_CHECKING:
    from sgl_epd.net.server import HttpServer

_HEAD_PIECE = 8 * 1024
_PIPELINE_LIMIT = 256 * 1024
_LINGER_S = 2.0
_NEVER = float("inf")


class HeaderFieldsTooLargeError(RequestError):
    status = 431
    error_type = "RequestHeaderFieldsTooLarge"


class State(Enum):
    HEAD = 0
    BODY = 1
    CHUNKED = 2
    BUSY = 3
    REFUSED = 4


class ServerConnection(asyncio.BufferedProtocol):
    """Created for each accepted connection by `HttpServer`."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self.connected = False
        self.write_paused = False
        self.task: asyncio.Task[None] | None = None
        self._server = server
        self._loop = loop
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._state = State.HEAD
        self._exchange: Exchange | None = None
        self._deadline = loop.time() + server.limits.head_timeout_s
        self._drained: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._pending = PendingBytes()
        # A body of known length: the kernel writes behind `_filled`.
        self._body = memoryview(b"")
        self._filled = 0
        self._low_water: LowWater | None = None
        self._chunked: ChunkedBody | None = None

    # -- transport callbacks -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.connected = True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("sslcontext") is None:
                self._low_water = LowWater(sock)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connected = False
        self._deadline = _NEVER
        self._server.connections.discard(self)
        self._wake_drain()
        if self.task is not None:
            self.task.cancel()

    def eof_received(self) -> bool:
        # A client that stops sending is treated as gone, as nginx and uvicorn do; the transport closes itself.
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._body[self._filled :] if self._state is State.BODY else self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is State.BODY:
            self._filled_up(nbytes)
        else:
            self._feed(self._server.scratch[:nbytes])

    def pause_writing(self) -> None:
        self.write_paused = True
        self._deadline = self._loop.time() + self._limits.write_stall_timeout_s

    def resume_writing(self) -> None:
        self.write_paused = False
        self._deadline = _NEVER if self._state is State.BUSY else self._loop.time() + self._limits.idle_timeout_s
        self._wake_drain()

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
        """The server is closing: end now, or after the request that is being read or served."""
        if self._exchange is not None:
            self._exchange.keep_alive = False
        elif self._transport is not None:
            self._transport.close()

    def date_header(self) -> bytes:
        return self._server.date_header()

    def check_deadline(self, now: float) -> None:
        if now < self._deadline:
            return
        idle = self._state is State.HEAD and not self._pending
        if self.write_paused or idle or self._state is State.REFUSED:
            self._deadline = _NEVER
            self.abort()
        else:
            self._refuse(RequestTimeoutError("the request did not arrive in time"))

    def exchange_done(self, exchange: Exchange) -> None:
        """The answer has been written: go on with the next request, or close."""
        self.task = None
        self._exchange = None
        if not self.connected or self._transport is None:
            return
        if self._state is State.REFUSED:
            self._linger(self._transport)
        elif not exchange.keep_alive or self._server.closing:
            self._transport.close()
        else:
            self._state = State.HEAD
            self._deadline = self._loop.time() + self._limits.idle_timeout_s
            self._set_reading(True)
            if self._pending:
                # From a fresh stack: a pipelining client must not make us recurse.
                self._loop.call_soon(self._next_pipelined)

    # -- reading -------------------------------------------------------------------------------------------------

    def _feed(self, data: memoryview) -> None:
        if self._state is State.HEAD:
            if not self._pending:
                self._deadline = self._loop.time() + self._limits.head_timeout_s
            # The head is in the first few KiB; what follows goes to where it belongs without a detour.
            self._pending.append(data[:_HEAD_PIECE])
            self._read_head()
            if len(data) > _HEAD_PIECE:
                self._feed(data[_HEAD_PIECE:])
        elif self._state is State.BODY:
            self._fill(data)
        elif self._state is State.CHUNKED:
            self._feed_chunked(data)
        elif self._state is State.BUSY:
            self._pending.append(data)
            if len(self._pending) > _PIPELINE_LIMIT:
                self._set_reading(False)

    def _fill(self, data: memoryview) -> None:
        """Put received bytes into the body; what is left over belongs to the next request."""
        size = min(len(data), len(self._body) - self._filled)
        self._body[self._filled : self._filled + size] = data[:size]
        self._filled_up(size)
        if size < len(data):
            self._feed(data[size:])

    def _filled_up(self, size: int) -> None:
        self._filled += size
        if self._low_water is not None:
            self._low_water.expect(len(self._body) - self._filled)
        if self._filled == len(self._body):
            self._body = memoryview(b"")
            self._run_handler()
        else:
            self._deadline = self._loop.time() + self._limits.body_stall_timeout_s

    def _next_pipelined(self) -> None:
        if self._state is State.HEAD and self.connected:
            self._read_head()

    def _read_head(self) -> None:
        """Start a request if its head is complete."""
        head = self._pending.take_head()
        size = len(self._pending if head is None else head)
        if size > self._limits.max_head_bytes:
            self._refuse(HeaderFieldsTooLargeError(f"the head is larger than {self._limits.max_head_bytes} bytes"))
        elif head is not None:
            self._start_request(head)

    def _start_request(self, data: bytes) -> None:
        try:
            head = RequestHead(data)
            exchange = self._exchange = Exchange(self, head, self._peer, self._loop.time())
            if head.body_length > 0 and (refusal := self._server.refuse_body(head.body_length)):
                raise refusal
        except RequestError as error:
            self._refuse(error)
            return
        try:
            if self._server.check_head is not None:
                self._server.check_head(exchange)
        except RequestError as error:
            self._refuse_politely(error, exchange, head.body_length)
            return
        self._start_body(exchange, head.body_length)

    def _start_body(self, exchange: Exchange, length: int) -> None:
        have = len(self._pending)
        if 0 <= length <= have:
            exchange.body = self._pending.take(length)
            self._run_handler()
            return
        if not have and (exchange.header(b"expect") or b"").lower() == b"100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._deadline = self._loop.time() + self._limits.body_stall_timeout_s
        first = self._pending.take(have)
        if length == CHUNKED:
            self._state = State.CHUNKED
            self._chunked = ChunkedBody()
            if first:
                self._feed_chunked(first)
            return
        self._state = State.BODY
        buffer = uninitialized(length)
        buffer[:have] = first
        exchange.body = buffer
        self._body = memoryview(buffer)
        self._filled = have
        if self._low_water is not None:
            self._low_water.expect(length - have)

    def _feed_chunked(self, data: memoryview | bytes) -> None:
        self._deadline = self._loop.time() + self._limits.body_stall_timeout_s
        chunked, exchange = self._chunked, self._exchange
        assert chunked is not None and exchange is not None
        try:
            chunked.feed(data)
            if refusal := self._server.refuse_body(len(chunked.body)):
                raise refusal
        except RequestError as error:
            self._refuse(error)
            return
        if chunked.complete:
            exchange.body = chunked.body
            # The start of a pipelined request is lost in there: answer this one, then close.
            exchange.keep_alive = exchange.keep_alive and not chunked.excess
            self._chunked = None
            self._run_handler()

    def _run_handler(self) -> None:
        assert self._exchange is not None
        self._state = State.BUSY
        self._deadline = _NEVER
        self.task = self._loop.create_task(self._server.run(self._exchange))

    # -- refusing and closing ------------------------------------------------------------------------------------

    def _refuse_politely(self, error: RequestError, exchange: Exchange, length: int) -> None:
        """Where the whole body is there already, it is skipped and the connection goes on."""
        if not 0 <= length <= len(self._pending):
            self._refuse(error)
            return
        self._pending.take(length)
        self._state = State.BUSY
        respond_error(exchange, error)

    def _refuse(self, error: RequestError) -> None:
        """Answer without having read the whole request, then close."""
        exchange = self._exchange or Exchange(self, None, self._peer, self._loop.time())
        exchange.keep_alive = False
        self._state = State.REFUSED
        self._body = memoryview(b"")
        self._chunked = None
        self._pending.clear()
        respond_error(exchange, error)

    def _linger(self, transport: asyncio.Transport) -> None:
        """End our side and discard what comes for a moment.

        Unread bytes may be on their way; closing at once would reset the connection and could destroy the answer before
        the client reads it.
        """
        if not transport.can_write_eof():
            transport.close()
            return
        self._deadline = self._loop.time() + _LINGER_S
        self._set_reading(True)
        transport.write_eof()

    def _wake_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _set_reading(self, on: bool) -> None:
        if self._transport is None or self._reading_paused is not on:
            return
        self._reading_paused = not on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
