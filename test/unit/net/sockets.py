"""Raw sockets for tests of framing: what is sent and received is under the test's control, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sgl_epd.net.client import ClientLimits, HttpClient
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.server import Handler, HttpServer, ServerLimits

HOST = "127.0.0.1"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(exchange: Exchange) -> None:
    """Answers with method, path and body, so that a test sees what the server understood."""
    exchange.respond(200, f"{exchange.method} {exchange.path} ".encode() + bytes(exchange.body))


class RawClient:
    """A connection to a server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """One answer: status, headers, body (chunks joined)."""
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            if headers.get("transfer-encoding") == "chunked":
                return status, headers, await self._chunks()
            return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def closed(self) -> bool:
        return await self.rest() == b""

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"
        return body


@asynccontextmanager
async def served(handler: Handler = echo, limits: ServerLimits | None = None, **kwargs: Any) -> AsyncIterator[int]:
    """An `HttpServer` on a free port; at the end no connection may be left."""
    server = HttpServer(handler, limits=limits, **kwargs)
    port = await server.listen(HOST, 0)
    try:
        yield port
    finally:
        await server.close()
        assert not server.connections


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """A server that runs `script` on each connection and then closes it. Yields its URL."""

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the peer was faster
        finally:
            writer.close()

    server = await asyncio.start_server(run, HOST, 0)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def client(**kwargs: Any) -> AsyncIterator[HttpClient]:
    made = HttpClient(limits=ClientLimits(**kwargs))
    try:
        yield made
    finally:
        await made.close()
        assert not made.connections


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """A request with a Content-Length body (or none): head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head


def ok(body: bytes = b"ok", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + extra + b"content-length: %d\r\n\r\n" % len(body) + body
