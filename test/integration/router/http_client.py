"""The tests' own HTTP client: small, exact, and able to behave badly. Shares no code with the router's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Reply:
    """A complete answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, whether nested as OpenAI and this router send it or flat as SGLang does."""
        value = self.json()
        found: dict[str, Any] = value["error"] if isinstance(value.get("error"), dict) else value
        return found

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event."""
        blocks = self.body.decode().split("\n\n")
        lines = (line for block in blocks for line in block.split("\n"))
        return [line[6:] for line in lines if line.startswith("data: ")]


class Link:
    """One connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: list[tuple[str, str]] = []

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self, method: str, path: str, body: bytes | dict[str, Any] | list[Any] | None = None, **headers: str
    ) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        fields = {"host": "router.test", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            fields = {"content-type": "application/json", **fields, "content-length": str(len(data))}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await self.send_raw(head.encode("latin-1") + b"\r\n" + data)

    async def send_raw(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def read_head(self) -> int:
        """Status of the answer; skips 100 Continue."""
        while True:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            self.status = int(lines[0].split(" ")[1])
            pairs = (line.partition(":") for line in lines[1:] if line)
            self.headers = [(key.strip().lower(), value.strip()) for key, _, value in pairs]
            if self.status != 100:
                return self.status

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    async def read_chunk(self) -> bytes | None:
        """The next chunk of a chunked body, None at its proper end. Raises IncompleteReadError when it is cut."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2] if size else None

    async def read_body(self) -> bytes:
        if (self.header("transfer-encoding") or "").lower() == "chunked":
            parts = []
            while (chunk := await self.read_chunk()) is not None:
                parts.append(chunk)
            return b"".join(parts)
        length = self.header("content-length")
        return await self.reader.readexactly(int(length)) if length is not None else await self.reader.read()

    async def reply(self) -> Reply:
        await self.read_head()
        return Reply(self.status, self.headers, await self.read_body())

    def reset(self) -> None:
        """Vanish with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def request(url: str, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    """One request on a connection of its own."""
    async with await Link.open(url) as link:
        await link.send(method, path, body, **headers)
        return await link.reply()
