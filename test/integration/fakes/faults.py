"""What can go wrong at a worker. A fault is put on a worker's script and hits the next request that it matches.

`on_request` runs when the request has been read, `on_event` before each event of a stream; either returns True when it
has dealt with the request and nothing more is to be sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .answers import error, sse
from .wire import Connection, head

if TYPE_CHECKING:
    from .worker import FakeWorker, Received

BEFORE_HEAD = -1
"""For `after`: fail before a single byte of the answer. 0 is after the head, k after k events."""


class Fault:
    """Does nothing: the base of all faults."""

    async def on_request(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        return False

    async def on_event(self, worker: FakeWorker, connection: Connection, leg: Received, index: int) -> bool:
        return False


class At(Fault):
    """A fault that strikes at one place: before the head of the answer, or after so many events of a stream."""

    def __init__(self, after: int = BEFORE_HEAD) -> None:
        self.after = after
        self.struck = asyncio.Event()

    async def on_request(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        return self.after == BEFORE_HEAD and await self._strike(worker, connection, leg)

    async def on_event(self, worker: FakeWorker, connection: Connection, leg: Received, index: int) -> bool:
        return self.after == index and await self._strike(worker, connection, leg)

    async def _strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        self.struck.set()
        return await self.strike(worker, connection, leg)

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        raise NotImplementedError


class Status(Fault):
    """Answer with an error status in SGLang's shape, or with `body` as it is."""

    def __init__(
        self,
        status: int,
        message: str = "scripted failure",
        *,
        body: bytes | None = None,
        type_: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status, self.message, self.body, self.type, self.headers = status, message, body, type_, headers

    async def on_request(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        if self.body is not None:
            await connection.reply(self.status, self.body, self.type, self.headers)
        else:
            await connection.reply_json(error(self.status, self.message), self.status, self.headers)
        return True


class Hang(At):
    """Send nothing more, until aborted or cut."""

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        await asyncio.Event().wait()
        return True


class Gate(At):
    """Wait for `release()`, then go on as if nothing had happened: slowness without a clock."""

    def __init__(self, after: int = BEFORE_HEAD) -> None:
        super().__init__(after)
        self._open = asyncio.Event()

    def release(self) -> None:
        self._open.set()

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        await self._open.wait()
        return False


class Reset(At):
    """RST: what a client sees when a process is killed with data in flight."""

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        connection.cut(reset=True)
        return True


class Close(At):
    """FIN in the middle of an answer: a body that ends too early."""

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        connection.cut()
        return True


class HalfClose(At):
    """FIN on the sending side only; the socket stays open and goes on reading."""

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        connection.half_close()
        await asyncio.Event().wait()
        return True


class Die(At):
    """The whole worker is gone: its socket and all its connections."""

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        await worker.kill()
        return True


class Garbage(At):
    """Bytes that are no HTTP at all, or, within a stream, no chunk."""

    def __init__(self, data: bytes = b"\x00\xff garbage \r\n\r\n", after: int = BEFORE_HEAD) -> None:
        super().__init__(after)
        self.data = data

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        await connection.write(self.data)
        await asyncio.Event().wait()
        return True


class WrongLength(Fault):
    """Promise more bytes than there are, then close."""

    async def on_request(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        await connection.write(head(200, {"content-type": "application/json", "content-length": "1000"}) + b'{"id":')
        connection.cut()
        return True


class AbortReason(At):
    """The engine gives the request up with a status (time-out, no memory, lost KV): SGLang's abort finish reason.

    Without streaming that is an HTTP error. A chat stream has it as an event in a reply with status 200, even as the
    first event, and [DONE] after it (`serving_chat._generate_chat_stream`).
    """

    def __init__(self, status: int = 500, message: str = "KV transfer failed", after: int = BEFORE_HEAD) -> None:
        super().__init__(after)
        self.status, self.message = status, message

    async def strike(self, worker: FakeWorker, connection: Connection, leg: Received) -> bool:
        leg.outcome = "failed"
        if not leg.stream:
            await connection.reply_json(error(self.status, self.message), self.status)
            return True
        if self.after == BEFORE_HEAD:
            await connection.start_stream()
        event = {"error": error(self.status, self.message, "INTERNAL_SERVER_ERROR")}
        await connection.chunk(sse(event))
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.end_stream()
        return True
