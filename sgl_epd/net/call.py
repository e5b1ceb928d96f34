"""One request to a server, from before its connection is made until its answer has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from sgl_epd.errors import ConnectError, TransportError
from sgl_epd.net.headers import RawHeaders

if TYPE_CHECKING:
    from sgl_epd.net.client import HttpClient
    from sgl_epd.net.client_connection import ClientConnection
    from sgl_epd.net.origin import Origin

Buffer = bytes | bytearray | memoryview

STALE_AFTER_S = 1.0
"""Idle time from which on a server may have given up a connection; servers wait for seconds (uvicorn: five)."""


class Sink(Protocol):
    """Receives one answer. After `on_end` or `on_error` nothing more comes; after `Call.cancel` nothing at all."""

    def on_head(self, status: int, headers: RawHeaders) -> None: ...

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_error(self, error: TransportError) -> None: ...


class Call:
    """A request that has been sent, or waits for its connection."""

    __slots__ = ("_connect_task", "_parts", "client", "connection", "done", "origin", "sink")

    def __init__(self, client: HttpClient, origin: Origin, parts: list[Buffer], sink: Sink) -> None:
        self.client = client
        self.origin = origin
        self.sink = sink
        self.connection: ClientConnection | None = None
        self.done = False
        self._parts: list[Buffer] = parts
        self._connect_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        connection = self.client.take_idle(self.origin)
        if connection is None:
            self._connect_task = self.client.spawn(self._connect())
        else:
            self._run_on(connection)

    def cancel(self) -> None:
        """Give up: the connection is closed at once, unless the answer is complete."""
        if self.done:
            return
        self.done = True
        if self._connect_task is not None:
            self._connect_task.cancel()
        if self.connection is not None:
            self.connection.abort()

    def pause_reading(self) -> None:
        if self.connection is not None:
            self.connection.set_reading(False)

    def resume_reading(self) -> None:
        if self.connection is not None:
            self.connection.set_reading(True)

    def on_head(self, status: int, headers: RawHeaders) -> None:
        # From here on it cannot be sent again, and an answer may take minutes: let go of a body of megabytes.
        self._parts = []
        self.sink.on_head(status, headers)

    def finished(self, error: TransportError | None, untouched: bool) -> None:
        """Called by the connection at the end. `untouched`: not one byte of an answer has arrived.

        A connection that dies untouched after some idle time was closed by the server while it was idle: the request is
        sent once more, on a new connection. One that was in use a moment ago died because of something else, and the
        server may have acted on the request; then it is for the caller to decide.
        """
        if self.done:
            return
        connection, self.connection = self.connection, None
        if error is not None and untouched and connection is not None and connection.idle_s >= STALE_AFTER_S:
            self._connect_task = self.client.spawn(self._connect())
            return
        self.done = True
        self._parts = []
        if error is None:
            self.sink.on_end()
        else:
            self.sink.on_error(error)

    async def _connect(self) -> None:
        try:
            connection = await self.client.connect(self.origin)
        except ConnectError as error:
            self._connect_task = None
            self.finished(error, untouched=False)
            return
        self._connect_task = None
        self._run_on(connection)

    def _run_on(self, connection: ClientConnection) -> None:
        self.connection = connection
        connection.run(self, self._parts)
