"""`random`: uniform, needs no state and no load."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView


class Random:
    name = "random"
    uses_load = False

    def __init__(self, config: PolicyConfig) -> None:
        self._random = random.Random(config.seed)

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        return Choice(int(self._random.random() * len(workers)))
