"""`power_of_two`: the less loaded of two random workers. Nearly as even as the least loaded, without its herding."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView


class PowerOfTwo:
    name = "power_of_two"
    uses_load = True

    def __init__(self, config: PolicyConfig) -> None:
        self._random = random.Random(config.seed)

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        count = len(workers)
        first = int(self._random.random() * count)
        if count == 1:
            return Choice(first)
        second = (first + 1 + int(self._random.random() * (count - 1))) % count
        return Choice(second if workers[second].work < workers[first].work else first)
