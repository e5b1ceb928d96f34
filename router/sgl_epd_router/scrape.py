"""The metrics of all router processes together, none of them ever going backwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sgl_epd_router.child_process import ChildProcess
from sgl_epd_router.metric_store import Snapshot, as_snapshot, merge
from sgl_epd_router.wire import WantMetrics

_TIMEOUT_S = 2.0


class Scraper:
    """Asks every process for its numbers.

    A process that does not answer in time counts with its last ones, and one that has ended leaves them behind: a sum
    that fell would look to Prometheus like a restart of everything.
    """

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        self._children = children
        self._retired: Snapshot = {}
        self._awaited: dict[int, asyncio.Future[None]] = {}

    async def gather(self) -> list[Snapshot]:
        awaited = [self._ask(child) for child in self._children if child.ready.is_set()]
        if awaited:
            await asyncio.wait(awaited, timeout=_TIMEOUT_S)
        return [self._retired, *(child.last_metrics for child in self._children)]

    def arrived(self, child: ChildProcess) -> None:
        future = self._awaited.pop(child.index, None)
        if future is not None and not future.done():
            future.set_result(None)

    def retire(self, child: ChildProcess) -> None:
        """The process has ended."""
        merged = merge([self._retired, child.last_metrics])
        self._retired = as_snapshot({name: list(series.items()) for name, series in merged.items()})
        child.last_metrics = {}
        self.arrived(child)

    def _ask(self, child: ChildProcess) -> asyncio.Future[None]:
        """Scrapes that overlap share one question."""
        future = self._awaited.get(child.index)
        if future is None or future.done():
            future = self._awaited[child.index] = asyncio.get_running_loop().create_future()
            child.send(WantMetrics(0))
        return future
