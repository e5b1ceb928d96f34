"""`round_robin`: one cursor for all requests, not one a request, so that single-item requests spread too."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView


class RoundRobin:
    name = "round_robin"
    uses_load = False

    def __init__(self, config: PolicyConfig) -> None:
        self._cursor = config.seed or 0

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        index = self._cursor % len(workers)
        self._cursor += 1
        return Choice(index)
