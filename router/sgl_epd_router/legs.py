"""A leg: one worker's share in an attempt, from taking the lease to its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sgl_epd.errors import TransportError
from sgl_epd.net.call import Call
from sgl_epd.net.headers import RawHeaders, get_header
from sgl_epd_router.lease import Lease
from sgl_epd_router.verdict import Verdict
from sgl_epd_router.worker import Outcome

_HIGH_WATER = 1024 * 1024
"""Bytes of a stream that may wait for a slow client before the worker is made to wait."""


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
    """Sink of one call. Gathers what arrives and wakes the request's task; what it means is for others to say."""

    __slots__ = (
        "_chunks",
        "_clock",
        "_size",
        "_wake",
        "call",
        "ended",
        "error",
        "headers",
        "lease",
        "status",
        "streaming",
        "verdict",
    )

    def __init__(self, lease: Lease, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self.lease = lease
        self.call: Call | None = None
        self.status = 0
        self.headers: RawHeaders = []
        self.ended = False
        self.error: TransportError | None = None
        self.verdict: Verdict | None = None
        self.streaming = False
        self._chunks: list[bytes] = []
        self._size = 0
        self._wake = wake
        self._clock = clock

    @property
    def done(self) -> bool:
        return self.ended or self.error is not None

    @property
    def role(self) -> str:
        return self.lease.role.value

    @property
    def is_events(self) -> bool:
        """Whether the answer is a stream of server-sent events."""
        return (get_header(self.headers, b"content-type") or b"").startswith(b"text/event-stream")

    def take(self) -> bytes:
        """All data that has arrived since the last call."""
        chunks = self._chunks
        if not chunks:
            return b""
        self._chunks = []
        if self._size > _HIGH_WATER and self.call is not None:
            self.call.resume_reading()
        self._size = 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def finish(self, outcome: Outcome) -> None:
        """Give the lease back; a call that is still running is cut."""
        if self.call is not None:
            self.call.cancel()
            self.call = None  # the two refer to each other: spare the garbage collector the work
        self.lease.finish(outcome, self._clock())

    # -- Sink ----------------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: RawHeaders) -> None:
        self.status = status
        self.headers = headers
        self.lease.touch(self._clock())
        self._wake()

    def on_data(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        self.lease.touch(self._clock())
        if self.streaming and self._size > _HIGH_WATER and self.call is not None:
            self.call.pause_reading()
        self._wake()

    def on_end(self) -> None:
        self.ended = True
        self._wake()

    def on_error(self, error: TransportError) -> None:
        self.error = error
        self._wake()
