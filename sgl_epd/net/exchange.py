"""One request on a server connection, and the ways to answer it.

A handler gets an `Exchange`, reads the request from it and answers with `respond` (whole) or with `start`, `write`,
`drain`, `end` (streamed). When the client goes away, the handler's task is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sgl_epd.net.headers import RawHeaders, encode_headers, get_header, status_line

if TYPE_CHECKING:
    from sgl_epd.net.connection import ServerConnection
    from sgl_epd.net.request_head import RequestHead

_LAST_CHUNK = b"0\r\n\r\n"
_CHUNK_COPY_LIMIT = 64 * 1024


class Exchange:
    """A request whose body has arrived in full, and its answer."""

    __slots__ = (
        "_chunked",
        "_connection",
        "body",
        "ended",
        "headers",
        "keep_alive",
        "method",
        "path",
        "peer",
        "query",
        "received_at",
        "reply_headers",
        "started",
        "status",
        "version",
    )

    def __init__(self, connection: ServerConnection, head: RequestHead | None, peer: str, received_at: float) -> None:
        """`head` is None when there was none that could be understood."""
        target = head.target if head else b"/"
        path, _, query = target.partition(b"?")
        self._connection = connection
        self._chunked = False
        self.method = head.method if head else "GET"
        self.path = path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.version = head.version if head else "1.1"
        self.peer = peer
        self.headers: RawHeaders = head.headers if head else []
        self.body: bytes | bytearray = b""
        self.reply_headers: RawHeaders = []
        """Sent with the answer, whatever it is."""
        self.keep_alive = head.keep_alive if head else False
        self.received_at = received_at
        """When the head had arrived, in the loop's time."""
        self.status = 0
        """Of the answer, once that has been started."""
        self.started = False
        self.ended = False

    def header(self, name: bytes) -> bytes | None:
        """The first value of a request header, by lower-case name."""
        return get_header(self.headers, name)

    @property
    def open(self) -> bool:
        """Whether the client can still receive something."""
        return not self.ended and self._connection.connected

    def respond(self, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole answer. `content-length` is set here; give no framing fields in `headers`."""
        if self.started:
            raise RuntimeError("the answer has been started already")
        self.started = True
        self.status = status
        head = self._head(status, headers)
        if status >= 200 and status not in (204, 304):
            head += b"content-length: %d\r\n" % len(body)
        else:
            body = b""
        if self.method == "HEAD":
            body = b""
        if len(body) < _CHUNK_COPY_LIMIT:
            self._connection.send(head + b"\r\n" + body)
        else:
            self._connection.send_parts([head + b"\r\n", body])
        self._finish()

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the head of an answer of unknown length."""
        if self.started:
            raise RuntimeError("the answer has been started already")
        self.started = True
        self.status = status
        self._chunked = self.version != "1.0"
        if not self._chunked:
            self.keep_alive = False
        head = self._head(status, headers)
        framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
        self._connection.send(head + framing)

    def write(self, data: bytes) -> None:
        """Send a piece of a started answer at once; `await drain()` now and then to respect a slow client."""
        if not data or self.method == "HEAD":
            return
        if not self._chunked:
            self._connection.send(data)
        elif len(data) < _CHUNK_COPY_LIMIT:
            self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._connection.send_parts([b"%x\r\n" % len(data), data, b"\r\n"])

    @property
    def must_drain(self) -> bool:
        """Whether `drain` would wait: lets a hot loop skip an await."""
        return self._connection.write_paused

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        await self._connection.drain()

    def end(self) -> None:
        """Finish a streamed answer."""
        if self.ended:
            return
        if self._chunked and self.method != "HEAD":
            self._connection.send(_LAST_CHUNK)
        self._finish()

    def abort(self) -> None:
        """Break the connection, so that the client notices that the answer is incomplete."""
        self.ended = True
        self._connection.abort()

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        head = (
            status_line(status)
            + encode_headers(headers)
            + encode_headers(self.reply_headers)
            + self._connection.date_header()
        )
        if not self.keep_alive:
            head += b"connection: close\r\n"
        elif self.version == "1.0":
            head += b"connection: keep-alive\r\n"
        return head

    def _finish(self) -> None:
        self.ended = True
        self._connection.exchange_done(self)
