"""The in-flight work of every router process at every worker, in one block of 64-bit counters.

With `--workers N` the block lies in shared memory: a process writes only its own row and reads the sum of all rows, so
no lock is needed and no update is lost. With one process it is a plain bytearray. A counter is eight aligned bytes,
which CPython reads and writes in one move.
"""

from __future__ import annotations

import mmap
import secrets
from typing import NamedTuple

MAX_WORKERS = 1024
"""Workers that a router can know at once."""
_KINDS = 3
_HEADER = 8
_ROW = _HEADER + MAX_WORKERS * _KINDS
_BYTES = 8
_RATE_CELLS = 2 * 4096


class Work(NamedTuple):
    """The three ways of counting what a worker has to do."""

    requests: int
    tokens: int
    patches: int


class CounterBoard:
    """`processes` rows; `mine` is the index of the row that this process writes."""

    def __init__(self, buffer: bytearray | mmap.mmap | None = None, *, processes: int = 1, mine: int = 0) -> None:
        self._buffer = bytearray(self.size(processes)) if buffer is None else buffer
        self.cells = memoryview(self._buffer).cast("q")
        self.rows = tuple(range(0, processes * _ROW, _ROW))
        self.mine = self.rows[mine]
        self.rate_cells = self.cells[processes * _ROW : -1]
        """For the rate limiter; the only cells that all processes write."""
        if not self.cells[-1]:
            self.cells[-1] = secrets.randbits(62) | 1

    @staticmethod
    def size(processes: int) -> int:
        """Bytes that the buffer must have."""
        return (processes * _ROW + _RATE_CELLS + 1) * _BYTES

    @property
    def salt(self) -> int:
        """A random number that all processes share; set by the first one that opens the board."""
        return int(self.cells[-1])

    def offset(self, slot: int) -> int:
        """Where a worker's counters start within a row."""
        return _HEADER + slot * _KINDS

    def work(self, slot: int) -> Work:
        """What all processes together have in flight at a worker."""
        cells, requests, tokens, patches = self.cells, 0, 0, 0
        for row in self.rows:
            at = row + _HEADER + slot * _KINDS
            requests += cells[at]
            tokens += cells[at + 1]
            patches += cells[at + 2]
        return Work(requests, tokens, patches)

    def total(self, index: int) -> int:
        """Sum over the processes of a counter that belongs to no worker (`index` below 8)."""
        return sum(self.cells[row + index] for row in self.rows)

    def add(self, index: int, amount: int) -> None:
        self.cells[self.mine + index] += amount

    def clear_row(self, process: int) -> None:
        """Forget the work of a process that died."""
        row = self.rows[process]
        self.cells[row : row + _ROW] = memoryview(bytes(_ROW * _BYTES)).cast("q")
