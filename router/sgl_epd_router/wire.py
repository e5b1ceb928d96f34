"""What the control process and the router processes say to each other, and how it is framed.

A stream socket carries messages of a four-byte length and msgpack. Every message is a tagged struct with a fixed shape,
so nothing but data can be sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from sgl_epd.errors import EpdError
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.commands import AbortRequests, AddWorker, DrainRouter, DrainWorker, Heartbeat, RemoveWorker
from sgl_epd_router.commands import UpdateWorker as _UpdateWorker
from sgl_epd_router.load import Correction, LoadReport
from sgl_epd_router.metric_store import Snapshot
from sgl_epd_router.worker import WorkerSpec

_LENGTH_BYTES = 4
MAX_BYTES = 64 * 2**20

AnyCommand = AddWorker | RemoveWorker | DrainWorker | Heartbeat | _UpdateWorker | DrainRouter | AbortRequests


class WorkerState(msgspec.Struct, frozen=True):
    """All that the control process knows about a worker and a router process does not find out by itself."""

    spec: WorkerSpec
    slot: int
    incarnation: int
    draining: bool
    removing: bool
    healthy: bool
    proven: bool
    reason: str
    breaker: str
    opened_at: float
    correction: Correction
    report: LoadReport | None


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The first message to a router process."""

    config: RouterConfig
    process: int


class PoolState(msgspec.Struct, frozen=True, tag=True):
    """The whole of the pools; sent whenever something in it has changed."""

    workers: list[WorkerState]
    draining: bool


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs, for at most `grace_s`, and exit."""

    grace_s: float


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Abort what you serve under this id (None: everything)."""

    rid: str | None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A router process accepts connections."""

    pid: int


class Call(msgspec.Struct, frozen=True, tag=True):
    number: int
    command: AnyCommand


class Answer(msgspec.Struct, frozen=True, tag=True):
    """To a `Call`: the result, or the error (status, type, message, code, param) to raise."""

    number: int
    result: dict[str, Any] | None = None
    error: tuple[int, str, str, str | int | None, str | None] | None = None


class WorkerOutcomes(msgspec.Struct, frozen=True):
    """How requests at one worker ended since the last message."""

    worker_id: str
    good: int = 0
    failed: int = 0
    good_trials: int = 0
    failed_trials: int = 0
    seen_at: float = float("-inf")


class Outcomes(msgspec.Struct, frozen=True, tag=True):
    workers: list[WorkerOutcomes]


class WantMetrics(msgspec.Struct, frozen=True, tag=True):
    """Somebody scrapes: to the control process, which asks every router process."""

    number: int


class Metrics(msgspec.Struct, frozen=True, tag=True):
    number: int
    snapshots: list[Snapshot]


Message = (
    Welcome | PoolState | Stop | Abort | Ready | Call | Answer | Outcomes | WantMetrics | Metrics
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class WireError(EpdError):
    """The other side sent something that is no message."""


class Link:
    """One end of the socket. `send` never waits: messages are few and small, and both sides always read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        if self._writer.is_closing():
            return
        data = _encoder.encode(message)
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    async def receive(self) -> Message | None:
        """The next message, or None when the other side is gone. Raises `WireError`."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > MAX_BYTES:
                raise WireError(f"a message of {length} bytes")
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            message: Message = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise WireError(str(error)) from error
        return message

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
