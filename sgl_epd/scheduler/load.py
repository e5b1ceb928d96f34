"""When a worker says what about its load: on change, not more often than somebody can use, and now and then anyway."""

from __future__ import annotations

import msgspec

from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.protocol.load import LoadReport
from sgl_epd.scheduler.encode import EncodeScheduler


class LoadReporter:
    """Asked after every change and at `next_at`, it gives the report that is due. The caller sends it."""

    def __init__(self, worker_id: str, *, min_interval_s: float = 0.005, heartbeat_s: float = 1.0) -> None:
        self._last = LoadReport(worker_id=worker_id, seq=0)
        self._sent_at = float("-inf")
        self._min_interval_s = min_interval_s
        self._heartbeat_s = heartbeat_s
        self._seen: dict[str, int] = {}
        self._pending = False

    def received(self, router_id: str, dispatch: int) -> None:
        """The router's work up to this number is in the counts from now on."""
        self._seen[router_id] = max(dispatch, self._seen.get(router_id, 0))

    def due(self, now: float, blocks: MMBlockManager, scheduler: EncodeScheduler | None = None) -> LoadReport | None:
        """The report to send now, if any."""
        report = msgspec.structs.replace(self._last, seen=dict(self._seen), **_blocks(blocks), **_work(scheduler))
        self._pending = report != self._last
        interval = self._min_interval_s if self._pending else self._heartbeat_s
        if now < self._sent_at + interval:
            return None
        self._last = msgspec.structs.replace(report, seq=self._last.seq + 1)
        self._sent_at = now
        self._pending = False
        return self._last

    @property
    def next_at(self) -> float:
        """When to ask again if nothing happens before."""
        return self._sent_at + (self._min_interval_s if self._pending else self._heartbeat_s)


def _blocks(blocks: MMBlockManager) -> dict[str, int]:
    return {
        "waiting_reservations": blocks.num_waiting,
        "waiting_embeddings": blocks.num_unfilled,
        "total_blocks": blocks.layout.num_blocks,
        "free_blocks": blocks.free_blocks,
        "cached_blocks": blocks.cached_blocks,
    }


def _work(scheduler: EncodeScheduler | None) -> dict[str, float]:
    if scheduler is None:
        return {}
    waiting, running = scheduler.waiting, scheduler.running
    return {
        "waiting_items": len(waiting),
        "waiting_patches": sum(job.patches for job in waiting),
        "running_items": len(running),
        "running_patches": sum(job.patches for job in running),
        "patches_per_s": scheduler.patches_per_s,
    }
