"""Who owns the pools that a router process serves from: itself, or the control process (`child.RemoteAttachment`)."""

from __future__ import annotations

from typing import Protocol

from sgl_epd_router.build import add_named_workers
from sgl_epd_router.commands import PoolControl
from sgl_epd_router.context import RouterContext
from sgl_epd_router.control import LocalControl
from sgl_epd_router.metric_store import Snapshot
from sgl_epd_router.upkeep import Upkeep
from sgl_epd_router.worker import Worker


class Attachment(Protocol):
    @property
    def control(self) -> PoolControl:
        """Takes every change of the pools."""

    async def gather(self) -> list[Snapshot]:
        """The metrics of all router processes."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class LocalAttachment:
    """A router of one process: the pools are its own."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._control = LocalControl(context.registry, context.gate, context.requests, context.clock)
        self._upkeep = Upkeep(context.config, context.registry, context.client, context.clock, self._gone)
        add_named_workers(context.registry, context.config, context.clock())

    @property
    def control(self) -> PoolControl:
        return self._control

    async def gather(self) -> list[Snapshot]:
        return [self._context.metrics.store.snapshot()]

    async def start(self) -> None:
        await self._upkeep.start()

    async def stop(self) -> None:
        await self._upkeep.stop()

    def _gone(self, worker: Worker) -> None:
        self._context.metrics.forget_worker(worker.id)
