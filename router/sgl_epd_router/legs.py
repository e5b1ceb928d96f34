"""A leg: one worker's share in a request, from taking the lease to its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sgl_epd.errors import TransportError
from sgl_epd.net.client import Call
from sgl_epd.net.headers import RawHeaders
from sgl_epd_router.lease import Lease
from sgl_epd_router.worker import Outcome


class Waker:
    """Lets one task sleep until any of its legs has news."""

    __slots__ = ("_future", "_loop", "_news")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._news = False

    def wake(self) -> None:
        self._news = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self) -> None:
        """Return as soon as there is news since the last return."""
        if not self._news:
            self._future = self._loop.create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._news = False


class Leg:
    """Sink of one call. Gathers what arrives and wakes the request's task; decides nothing."""

    __slots__ = (
        "_clock",
        "_size",
        "call",
        "chunks",
        "ended",
        "error",
        "headers",
        "lease",
        "rid",
        "status",
        "streaming",
        "waker",
    )

    HIGH_WATER = 1024 * 1024

    def __init__(self, lease: Lease, rid: str, waker: Waker, clock: Callable[[], float]) -> None:
        self.lease = lease
        self.rid = rid
        self.waker = waker
        self.call: Call | None = None
        self.status = 0
        self.headers: RawHeaders = []
        self.chunks: list[bytes] = []
        self.ended = False
        self.streaming = False
        self.error: TransportError | None = None
        self._clock = clock
        self._size = 0

    @property
    def done(self) -> bool:
        return self.ended or self.error is not None

    def on_head(self, status: int, headers: RawHeaders) -> None:
        self.status = status
        self.headers = headers
        self.lease.touch(self._clock())
        self.waker.wake()

    def on_data(self, data: bytes) -> None:
        self.chunks.append(data)
        self._size += len(data)
        if self.streaming and self._size > self.HIGH_WATER and self.call is not None:
            self.call.pause_reading()
        self.waker.wake()

    def on_end(self) -> None:
        self.ended = True
        self.waker.wake()

    def on_error(self, error: TransportError) -> None:
        self.error = error
        self.waker.wake()

    def take(self) -> bytes:
        """All data that has arrived since the last call."""
        chunks = self.chunks
        if not chunks:
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = []
        if self.streaming and self._size > self.HIGH_WATER and self.call is not None:
            self.call.resume_reading()
        self._size = 0
        return data

    def finish(self, outcome: Outcome) -> None:
        """Give the lease back; a call that is still running is cut."""
        if self.call is not None:
            self.call.cancel()
        self.lease.finish(outcome, self._clock())
