"""Which blocks are free, kept as runs of neighbours.

Runs, because a run travels as one write: 4 MiB in 1024 pieces take Mooncake over TCP more than ten times as long as in
one (`benchmark/transfer.py`). So allocation looks for one run that fits before it takes several.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

from sgl_epd.cache.layout import Run


class BlockPool:
    """Hands out blocks and takes them back. Who holds them, and for how long, is not known here."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} blocks")
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks
        self._runs = [Run(0, num_blocks)]
        """Free runs by start; neighbours are always merged."""

    def allocate(self, count: int) -> tuple[Run, ...]:
        """`count` blocks in as few runs as there are; the caller has looked at `free_blocks`."""
        if not 0 < count <= self.free_blocks:
            raise ValueError(f"{count} blocks of {self.free_blocks} free ones")
        taken: list[Run] = []
        while count:
            run = self._take(count)
            taken.append(run)
            count -= run.length
        return tuple(taken)

    def release(self, runs: Iterable[Run]) -> None:
        """Raises `ValueError` for a block that is free already: somebody would have used it twice."""
        for run in runs:
            self._put(run)

    def check(self, held: Sequence[Run]) -> None:
        """Raises `ValueError` unless every block is free or in `held`, exactly once. For tests and idle time."""
        position = 0
        for start, length in sorted([*held, *self._runs]):
            if start != position:
                raise ValueError(f"block {min(start, position)} is {'held twice' if start < position else 'lost'}")
            position += length
        if position != self.num_blocks or self.free_blocks != sum(run.length for run in self._runs):
            raise ValueError(f"{self.num_blocks} blocks, but {position} accounted for; {self.free_blocks} free")

    def _take(self, wanted: int) -> Run:
        """The front of the smallest run that holds `wanted`, else the largest run whole."""
        fitting = [run for run in self._runs if run.length >= wanted]
        run = min(fitting, key=_length) if fitting else max(self._runs, key=_length)
        index = bisect_right(self._runs, run) - 1
        taken = Run(run.start, min(wanted, run.length))
        if taken.length == run.length:
            del self._runs[index]
        else:
            self._runs[index] = Run(run.start + taken.length, run.length - taken.length)
        self.free_blocks -= taken.length
        return taken

    def _put(self, run: Run) -> None:
        start, end = run.start, run.start + run.length
        at = bisect_right(self._runs, run)
        before = self._runs[at - 1] if at else None
        after = self._runs[at] if at < len(self._runs) else None
        overlaps = (before and before.start + before.length > start) or (after and after.start < end)
        if overlaps or start < 0 or end > self.num_blocks or run.length < 1:
            raise ValueError(f"blocks {start} to {end - 1} are not all in use")
        if after and after.start == end:
            del self._runs[at]
            end = after.start + after.length
        if before and before.start + before.length == start:
            del self._runs[at - 1]
            start = before.start
        insort(self._runs, Run(start, end - start))
        self.free_blocks += run.length


def _length(run: Run) -> int:
    return run.length
