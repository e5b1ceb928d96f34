"""Virtual time: what happens next, and nothing in between."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class Events:
    """Actions in order of time; those of one moment in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ties = count()

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        """Never earlier than now: times are sums, and sums are rounded."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._ties), action, args))

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + seconds, action, *args)

    def stop(self) -> None:
        """Nothing of what was planned will happen."""
        self._heap.clear()

    def run(self) -> None:
        """Until nothing is left to happen."""
        heap = self._heap
        while heap:
            self.now, _, action, args = heapq.heappop(heap)
            action(*args)


class Link:
    """What one worker sends, one message after the other: together they take as long as if they shared the link."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def send(self, now: float, latency_s: float, busy_s: float) -> float:
        """When a message that keeps the link busy for so long has arrived."""
        self._free_at = max(now, self._free_at) + busy_s
        return self._free_at + latency_s
