"""HTTP/1.1 over asyncio streams, written apart from the router's own code so that both cannot share a mistake.

One `Connection` serves requests one after another. While a request is handled, the connection is watched: a client that
goes away cancels the handler, as uvicorn tells SGLang of a disconnect. Whoever sends a second request before the first
is answered is recorded in `Server.pipelined`, as the router never should.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    408: "Request Timeout",
}


class Request:
    """A request as it came in: header names in lower case, in order, and the body's bytes."""

    def __init__(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> None:
        parts = urlsplit(target)
        self.method, self.path, self.query = method, parts.path, parse_qs(parts.query)
        self.target, self.headers, self.body = target, headers, body

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.method} {self.target} {len(self.body)} bytes>"


Handler = Callable[["Connection", Request], Awaitable[None]]


class Server:
    """A listening socket and its connections."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.pipelined = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=1 << 20, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def stop(self, *, reset: bool = True) -> None:
        """Close the socket and cut every connection, as when the process is killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.cut(reset=reset)
        tasks = [c.task for c in self.connections if c.task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            writer.close()


class Connection:
    """One client connection, and the primitives that answers and faults are made of."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self._reader, self._writer = server, reader, writer
        self.task = asyncio.current_task()
        assert self.task is not None
        self.broken = False
        self._ahead = b""
        self._answered = False

    async def run(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while not self.broken:
                request = await self._read_request()
                if request.header("connection") == "close":
                    self.broken = True
                await self._handle(request)

    async def _handle(self, request: Request) -> None:
        """Run the handler until it is done or the client is gone."""
        self._answered = False
        handler = asyncio.ensure_future(self.server.handler(self, request))
        watcher = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({handler, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not handler.done():
                if watcher.exception() or not watcher.result():
                    handler.cancel()
                    self.broken = True
                elif not self._answered:
                    self.server.pipelined += 1
            await asyncio.wait({handler})
            if not handler.cancelled():
                handler.result()
            if watcher.done() and not watcher.exception():
                self._ahead = watcher.result()
        finally:
            for task in (handler, watcher):
                task.cancel()
            await asyncio.gather(handler, watcher, return_exceptions=True)

    async def _read_request(self) -> Request:
        head = self._ahead + await self._reader.readuntil(b"\r\n\r\n")
        self._ahead = b""
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = [(k.strip().lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines[1:] if line)]
        length = next((int(v) for k, v in headers if k == "content-length"), 0)
        if any(k == "transfer-encoding" for k, _ in headers):
            return Request(method, target, headers, await self._read_chunked())
        return Request(method, target, headers, await self._reader.readexactly(length) if length else b"")

    async def _read_chunked(self) -> bytes:
        body = bytearray()
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return bytes(body)

    # -- answers ---------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(
        self, status: int, body: bytes = b"", type_: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        """A complete answer with Content-Length."""
        self._answered = True
        await self.write(
            head(status, {"content-length": str(len(body)), "content-type": type_, **(headers or {})}) + body
        )

    async def reply_json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        await self.reply(status, json.dumps(value, separators=(",", ":")).encode(), headers=headers)

    async def start_stream(self, status: int = 200) -> None:
        """Head of an SSE answer, chunked as uvicorn sends it."""
        type_ = "text/event-stream; charset=utf-8"
        await self.write(head(status, {"content-type": type_, "transfer-encoding": "chunked"}))

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        self._answered = True
        await self.write(b"0\r\n\r\n")

    # -- faults ----------------------------------------------------------------------------------------------------

    def cut(self, *, reset: bool = False) -> None:
        """Close the connection now, with RST when `reset`, so that what was sent last may be lost, as in a crash."""
        self.broken = True
        sock = self._writer.get_extra_info("socket")
        if reset and sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort() if reset else self._writer.close()

    def half_close(self) -> None:
        """Send FIN but go on reading: what a worker in shutdown, or a confused middle box, does."""
        self._writer.write_eof()


def head(status: int, headers: dict[str, str]) -> bytes:
    reason = REASONS.get(status, "Status")
    fields = "".join(f"{name}: {value}\r\n" for name, value in {"server": "uvicorn", **headers}.items())
    return f"HTTP/1.1 {status} {reason}\r\n{fields}\r\n".encode("latin-1")
