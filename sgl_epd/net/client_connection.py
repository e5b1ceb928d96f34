"""The client's side of one connection to a server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import httptools

from sgl_epd.errors import DisconnectedError, PeerProtocolError, TransportError
from sgl_epd.net.headers import RawHeaders, get_header

if TYPE_CHECKING:
    from sgl_epd.net.call import Buffer, Call
    from sgl_epd.net.client import HttpClient
    from sgl_epd.net.origin import Origin

_MAX_HEAD_BYTES = 256 * 1024


class ClientConnection(asyncio.Protocol):
    """Carries one call after another; owned by `HttpClient`."""

    def __init__(self, client: HttpClient, origin: Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self.idle_s = 0.0
        """How long it had been idle when the current call took it; 0 for a new connection."""
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: RawHeaders = []
        self._head_bytes = 0
        self._received = False
        self._in_body = False
        self._complete = False
        self._until_eof = False
        self._reading = True
        self._excess = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def run(self, call: Call, parts: Sequence[Buffer]) -> None:
        """Write a request; its answer goes to `call`."""
        assert self._transport is not None
        self._call = call
        self._received = self._in_body = self._complete = False
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def set_reading(self, on: bool) -> None:
        if self._transport is None or self._reading is on or self._transport.is_closing():
            return
        self._reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    # -- transport callbacks -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            # Unasked-for bytes on an idle connection: nothing that follows could be trusted.
            self.abort()
            return
        self._received = True
        if not self._in_body:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._fail(PeerProtocolError(f"the head of the answer of {self.origin.url} is too large"))
                return
        try:
            self._parser.feed_data(data)
            if self._excess:
                # More than the answer has come: whom the rest belongs to cannot be told.
                self.abort()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(PeerProtocolError(f"{self.origin.url} sent a malformed answer: {error}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.connections.discard(self)
        call, self._call = self._call, None
        if call is None:
            return
        if self._in_body and self._until_eof and exc is None:
            call.finished(None, untouched=False)
            return
        what = "before its answer was complete" if self._received else "without an answer"
        call.finished(
            DisconnectedError(f"{self.origin.url} closed the connection {what}"), untouched=not self._received
        )

    # -- parser callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = []
        self._excess = self._call is None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._in_body = True
        self._head_bytes = 0
        self._until_eof = (
            get_header(self._headers, b"content-length") is None
            and get_header(self._headers, b"transfer-encoding") is None
        )
        if self._call is not None:
            self._call.on_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if self._call is not None:
            self._call.sink.on_data(data)

    def on_message_complete(self) -> None:
        if not self._in_body:
            return  # an interim answer, 1xx
        call, self._call = self._call, None
        self._in_body = False
        assert self._transport is not None
        # Still writing: the server has answered without reading all; the connection cannot be used again.
        clean = self._parser.should_keep_alive() and self._transport.get_write_buffer_size() == 0
        self.set_reading(True)
        if clean and self.usable:
            self._client.give_back(self)
        else:
            self._transport.close()
        if call is not None:
            call.finished(None, untouched=False)

    def _fail(self, error: TransportError) -> None:
        call = self._call
        self.abort()
        if call is not None:
            call.finished(error, untouched=False)
