"""`least_load`: the worker with the least pending work. Ties go round, so that idle workers take turns."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView


class LeastLoad:
    name = "least_load"
    uses_load = True

    def __init__(self, config: PolicyConfig) -> None:
        self._cursor = config.seed or 0

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        self._cursor += 1
        return Choice(least_loaded(workers, self._cursor))


def least_loaded(workers: Sequence[WorkerView], start: int = 0) -> int:
    """Index of the least `work`; among equals the first from `start` on, going round."""
    count = len(workers)
    best = start % count
    best_work = workers[best].work
    for step in range(1, count):
        index = (start + step) % count
        work = workers[index].work
        if work < best_work:
            best, best_work = index, work
    return best
