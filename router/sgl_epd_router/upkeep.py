"""Keeps the pools true: health, load, encoder lists, and the forgetting of workers that are gone.

One task ticks a few times a second and starts what is due; the work itself is in `care`. Runs in the process that owns
the pools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import zmq

from sgl_epd.net.client import HttpClient
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.care import CareConfig, WorkerCare
from sgl_epd_router.encoder_lists import plan
from sgl_epd_router.registry import Registry
from sgl_epd_router.worker import Role, Worker

logger = logging.getLogger(__name__)
_TICK_S = 0.1


class Upkeep:
    """`on_gone` hears of each worker that has been forgotten."""

    def __init__(
        self,
        config: RouterConfig,
        registry: Registry,
        client: HttpClient,
        clock: Callable[[], float],
        on_gone: Callable[[Worker], None] | None = None,
    ) -> None:
        self._registry = registry
        self._client = client
        self._clock = clock
        self._on_gone = on_gone
        self._stock = config.encode_dispatch == "prefill"
        self._encode_policy = config.encode_policy
        self._care_config = CareConfig(
            poll_interval_s=config.load_poll_interval_secs,
            stream=config.load_stream,
            sync_interval_s=config.encoder_sync_interval_secs,
        )
        self._zmq: zmq.Context[Any] = zmq.Context()
        self._cared: dict[str, WorkerCare] = {}
        self._had_encoders = False
        self._warned = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._registry.on_change.append(self._changed)
        self._task = asyncio.create_task(self._run(), name="upkeep")

    async def stop(self) -> None:
        self._registry.on_change.remove(self._changed)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for care in self._cared.values():
            await care.close()
        self._cared.clear()
        self._zmq.term()

    async def _run(self) -> None:
        while True:
            try:
                await self._tick()
            except Exception:
                # A defect here must not end all health checks for good: it is reported and tried again.
                logger.exception("upkeep failed")
            await asyncio.sleep(_TICK_S)

    async def _tick(self) -> None:
        now = self._clock()
        for worker in self._registry.sweep(now):
            await self._forget(worker)
        lists = self._encoder_lists(now)
        for worker in list(self._registry.workers.values()):
            self._care(worker).tick(now, lists.get(worker.id))

    def _care(self, worker: Worker) -> WorkerCare:
        care = self._cared.get(worker.id)
        if care is None:
            care = WorkerCare(worker, self._registry, self._client, self._zmq, self._care_config, self._clock)
            self._cared[worker.id] = care
        return care

    async def _forget(self, worker: Worker) -> None:
        logger.info("%s has left", worker.id)
        care = self._cared.pop(worker.id, None)
        if care is not None:
            await care.close()
        if not any(other.url == worker.url for other in self._registry.workers.values()):
            self._client.forget(worker.url)
        if self._on_gone is not None:
            self._on_gone(worker)

    def _changed(self) -> None:
        for care in self._cared.values():
            care.sync_soon()

    def _encoder_lists(self, now: float) -> dict[str, frozenset[str]]:
        """Worker id -> URLs of its encoders, for each worker whose list is ours to keep."""
        registry = self._registry
        self._had_encoders = self._had_encoders or bool(registry.in_role(Role.ENCODE))
        if not self._stock or not self._had_encoders:
            return {}
        encoders = [w for w in registry.in_role(Role.ENCODE) if w.healthy and not w.draining and w.breaker.allows(now)]
        users = [*registry.in_role(Role.PREFILL)] or [*registry.in_role(Role.REGULAR)]
        for encoder in encoders:
            encoder.refresh(now)
        self._warn_if_none(bool(encoders), bool(users))
        urls = {encoder.id: encoder.url for encoder in encoders}
        lists = plan([user.id for user in users], encoders, self._encode_policy)
        return {user: frozenset(urls[name] for name in names) for user, names in lists.items()}

    def _warn_if_none(self, some: bool, needed: bool) -> None:
        if needed and not some and not self._warned:
            logger.warning("no encode worker can serve: prefill workers encode images themselves, if they can")
        self._warned = needed and not some
