"""The owner of the pools in a router of one process: commands are carried out on the spot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_epd_router.cancel import RequestIds
from sgl_epd_router.commands import AbortRequests, Command, DrainRouter, execute
from sgl_epd_router.gate import Gate
from sgl_epd_router.registry import Registry


class LocalControl:
    def __init__(self, registry: Registry, gate: Gate, requests: RequestIds, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._gate = gate
        self._requests = requests
        self._clock = clock

    @property
    def draining(self) -> bool:
        return self._gate.draining

    async def run(self, command: Command) -> dict[str, Any]:
        if isinstance(command, DrainRouter):
            self._gate.draining = command.draining
            return {"draining": command.draining}
        if isinstance(command, AbortRequests):
            return {"aborted": abort_here(self._requests, command.rid)}
        return execute(self._registry, command, self._clock())


def abort_here(requests: RequestIds, rid: str | None) -> int:
    """Abort what this process serves under a client's id (None: everything); returns how many."""
    found = list(requests.all() if rid is None else requests.find(rid))
    for request in found:
        request.request_abort()
    return len(found)
