"""The interface of all backends: one region of memory each, and writes into the region of a peer.

A region is registered once. Its owner describes it in a message to the peer, the peer writes into it without its help,
and both know by the block managers who may write where and when. A backend knows nothing about blocks.
"""

from __future__ import annotations

import mmap
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sgl_epd.errors import ConfigError, TransferError
from sgl_epd.protocol.peers import Peer
from sgl_epd.transfer.pieces import Piece, out_of_range

P = TypeVar("P", bound=Peer)
Bytes = NDArray[np.uint8]


class Region:
    """The memory that a transfer reads from and that peers write to.

    `data` is None for memory that the CPU cannot touch; only Mooncake takes such a region. `owner` is kept alive.
    """

    def __init__(self, address: int, nbytes: int, data: Bytes | None = None, owner: object = None) -> None:
        self.address = address
        self.nbytes = nbytes
        self.data = data
        self.owner = owner

    @classmethod
    def over(cls, buffer: mmap.mmap | memoryview | Bytes) -> Region:
        """Over writable memory of the CPU; the buffer must stay where it is."""
        data = np.frombuffer(buffer, np.uint8)
        if not data.flags.writeable:
            raise ConfigError("a region must be writable")
        return cls(data.ctypes.data, data.nbytes, data, buffer)


class Write:
    """One write under way, of all its pieces or of none that could be relied on. Thread-safe.

    `done` is set when all bytes lie in the peer's memory, or gets a `TransferError`, the latest at the deadline.
    `quiet` is set when the source is not read any more: at the same moment as a rule, later if a write that has missed
    its deadline cannot be called back. From an event loop: `await asyncio.wrap_future(write.done)`.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.done: Future[None] = Future()
        self.quiet: Future[None] = Future()
        self._lock = threading.Lock()
        for future in (self.done, self.quiet):
            future.set_running_or_notify_cancel()

    @classmethod
    def failed(cls, error: TransferError) -> Write:
        write = cls(0)
        write.fail(error)
        return write

    def succeed(self) -> None:
        self._settle(None, quiet=True)

    def fail(self, error: TransferError, *, quiet: bool = True) -> None:
        """Later calls change nothing, except that `quiet` may follow."""
        self._settle(error, quiet)

    def _settle(self, error: TransferError | None, quiet: bool) -> None:
        with self._lock:
            news, calm = not self.done.done(), quiet and not self.quiet.done()
            # Quiet first: who learns that a write is done may look at once whether the source is free.
            if calm:
                self.quiet.set_result(None)
            if news and error is not None:
                self.done.set_exception(error)
            elif news:
                self.done.set_result(None)


class Transfer(ABC, Generic[P]):
    """One backend in one process. All methods may be called from any thread; none of them waits for a peer."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._region: Region | None = None
        self._closed = False
        self._gate = threading.Lock()
        """No write starts once `close` has begun."""

    @property
    def region(self) -> Region:
        if self._region is None:
            raise ConfigError(f"the {self.name} transfer has no region yet")
        return self._region

    def allocate(self, nbytes: int) -> Region:
        """Page-aligned zeroed memory of the CPU, registered."""
        region = Region.over(mmap.mmap(-1, nbytes))
        self.register(region)
        return region

    def register(self, region: Region) -> None:
        """Make the region known, once. Raises `ConfigError` if this backend cannot use such memory."""
        if self._region is not None:
            raise ConfigError(f"the {self.name} transfer has its region already")
        self._register(region)
        self._region = region

    def write(self, peer: P, pieces: Sequence[Piece], timeout_s: float) -> Write:
        """Start writing; whatever goes wrong is told by the `Write`. The source must not change until it is quiet."""
        wrong = out_of_range(pieces, self.region.nbytes, peer.nbytes)
        if wrong is not None:
            return Write.failed(TransferError(f"{wrong} is outside of the regions"))
        write = Write(sum(piece.length for piece in pieces))
        with self._gate:
            if self._closed:
                write.fail(TransferError(f"the {self.name} transfer is closed"))
            elif pieces:
                self._start(write, peer, pieces, timeout_s)
            else:
                write.succeed()
        return write

    def close(self) -> None:
        """End all writes with an error, take no more, give everything back. Waits a bounded time."""
        with self._gate:
            first, self._closed = not self._closed, True
        if first:
            self._close()

    @abstractmethod
    def describe(self) -> P:
        """The message by which peers find the region."""

    @abstractmethod
    def _register(self, region: Region) -> None: ...

    @abstractmethod
    def _start(self, write: Write, peer: P, pieces: Sequence[Piece], timeout_s: float) -> None:
        """Hand the write to whoever does it; never waits for the peer."""

    @abstractmethod
    def _close(self) -> None: ...


def cpu_data(region: Region, name: str) -> Bytes:
    """The region's bytes, for backends that copy them. Raises `ConfigError`."""
    if region.data is None:
        raise ConfigError(f"the {name} transfer needs a region in the memory of the CPU; use mooncake")
    return region.data
