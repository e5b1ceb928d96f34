"""The link of a router process to the control process: mirrors the pools, sends outcomes and commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from sgl_epd.errors import RequestError, UnavailableError
from sgl_epd_router.commands import Command, PoolControl
from sgl_epd_router.context import RouterContext
from sgl_epd_router.control import abort_here
from sgl_epd_router.metric_store import Snapshot
from sgl_epd_router.mirror import Mirror, OutcomeSender
from sgl_epd_router.wire import Abort, Answer, Call, Link, Message, Metrics, PoolState, Stop, WantMetrics

logger = logging.getLogger(__name__)
_ANSWER_TIMEOUT_S = 10.0


class RemoteError(RequestError):
    """An error that the control process answered with, raised here as it was there."""

    def __init__(self, error: tuple[int, str, str, str | int | None, str | None]) -> None:
        status, error_type, message, code, param = error
        super().__init__(message, code=code, param=param)
        self.status = status  # type: ignore[misc]
        self.error_type = error_type  # type: ignore[misc]


class RemoteControl:
    """Commands to the process that owns the pools."""

    def __init__(self, context: RouterContext, link: Link) -> None:
        self._gate = context.gate
        self._link = link
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[Answer | Metrics]] = {}

    @property
    def draining(self) -> bool:
        return self._gate.draining

    async def run(self, command: Command) -> dict[str, Any]:
        answer = await self._ask(lambda number: Call(number, command))
        assert isinstance(answer, Answer)
        if answer.error is not None:
            raise RemoteError(answer.error)
        return answer.result or {}

    async def gather(self) -> list[Snapshot]:
        answer = await self._ask(WantMetrics)
        assert isinstance(answer, Metrics)
        return answer.snapshots

    def answered(self, message: Answer | Metrics) -> None:
        future = self._waiting.get(message.number)
        if future is not None and not future.done():
            future.set_result(message)

    async def _ask(self, make: Callable[[int], Message]) -> Answer | Metrics:
        self._numbers += 1
        number = self._numbers
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._link.send(make(number))
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await self._waiting[number]
        except TimeoutError:
            raise UnavailableError("the router's control process does not answer", retry_after_s=1) from None
        finally:
            del self._waiting[number]


class RemoteAttachment:
    """An `Attachment` whose pools belong to the control process. `stopping` gets the grace, in seconds, or None."""

    def __init__(self, context: RouterContext, link: Link) -> None:
        loop = asyncio.get_running_loop()
        metrics = context.metrics
        self.stopping: asyncio.Future[float | None] = loop.create_future()
        self._context = context
        self._link = link
        self._control = RemoteControl(context, link)
        self._mirror = Mirror(context.registry, lambda worker: metrics.forget_worker(worker.id))
        self._sender = OutcomeSender(link.send, loop)
        context.registry.observe(self._sender)

    @property
    def control(self) -> PoolControl:
        return self._control

    async def gather(self) -> list[Snapshot]:
        return await self._control.gather()

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        self._sender.close()

    def stop_soon(self, grace_s: float | None) -> None:
        if not self.stopping.done():
            self.stopping.set_result(grace_s)

    async def read(self) -> None:
        """Take messages until the control process is gone."""
        while (message := await self._link.receive()) is not None:
            self.take(message)
        if not self.stopping.done():
            logger.error("the control process is gone; finishing what runs")
        self.stop_soon(None)

    def take(self, message: Message) -> None:
        context = self._context
        if isinstance(message, PoolState):
            context.gate.draining = message.draining or self.stopping.done()
            self._mirror.apply(message, context.clock())
        elif isinstance(message, Stop):
            self.stop_soon(message.grace_s)
        elif isinstance(message, Abort):
            abort_here(context.requests, message.rid)
        elif isinstance(message, WantMetrics):
            self._link.send(Metrics(message.number, [context.metrics.store.snapshot()]))
        elif isinstance(message, Answer | Metrics):
            self._control.answered(message)
