"""Everything that is done to one worker at intervals: health check, look at its flags, load, encoder list."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import zmq

from sgl_epd.net.client import HttpClient
from sgl_epd_router.encoder_sync import EncoderSync
from sgl_epd_router.load_poll import LoadPoller
from sgl_epd_router.load_stream import LoadStream, stream_ports
from sgl_epd_router.probe import bootstrap_port, probe, role_mismatch, server_info
from sgl_epd_router.registry import Registry
from sgl_epd_router.worker import Role, Worker

logger = logging.getLogger(__name__)
_STREAM_SILENCE_S = 3.0
"""The stream beats every second; after this long without it the worker is asked again."""
_INSPECT_AGAIN_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class CareConfig:
    poll_interval_s: float = 1.0
    stream: bool = True
    sync_interval_s: float = 2.0


class WorkerCare:
    """`tick` starts what is due; nothing of one kind ever runs twice at once."""

    def __init__(
        self,
        worker: Worker,
        registry: Registry,
        client: HttpClient,
        zmq_context: zmq.Context[Any],
        config: CareConfig,
        clock: Callable[[], float],
    ) -> None:
        self.worker = worker
        self.encoders = EncoderSync(worker, client)
        self._registry = registry
        self._client = client
        self._zmq = zmq_context
        self._config = config
        self._clock = clock
        self._poller = LoadPoller(worker, client, clock)
        self._stream: LoadStream | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._inspected = -1
        self._inspect_at = 0.0
        self._sync_at = 0.0

    def tick(self, now: float, wanted_encoders: frozenset[str] | None) -> None:
        """`wanted_encoders` of None means that this worker's list is none of our business."""
        worker, config = self.worker, self._config
        if self._registry.config.health.enabled and now >= worker.health.next_probe_at:
            self._start("probe", self._probe)
        if not (worker.health.healthy and worker.health.proven):
            return
        if worker.incarnation != self._inspected and now >= self._inspect_at:
            self._start("inspect", self._inspect)
        if config.poll_interval_s and now >= self._poller.next_at and not self._stream_alive(now):
            self._poller.next_at = now + config.poll_interval_s
            self._start("poll", self._poller.poll)
        if wanted_encoders is not None and now >= self._sync_at:
            self._sync_at = now + config.sync_interval_s
            self._start("sync", lambda: self.encoders.sync(wanted_encoders))

    def sync_soon(self) -> None:
        """The pools have changed: do not wait for the interval."""
        self._sync_at = 0.0

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, kind: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        running = self._tasks.get(kind)
        if running is not None and not running.done():
            return
        task = asyncio.get_running_loop().create_task(work(), name=f"{kind} {self.worker.id}")
        task.add_done_callback(_log_failure)
        self._tasks[kind] = task

    async def _probe(self) -> None:
        worker = self.worker
        health = self._registry.config.health
        worker.health.probing(self._clock())
        found = await probe(worker, self._client, health)
        if self._registry.record_probe(worker, found, self._clock()):
            if worker.healthy:
                logger.info("%s is healthy", worker.id)
            else:
                logger.warning("%s is unhealthy (%s)", worker.id, worker.health.reason)

    async def _inspect(self) -> None:
        """Once for each incarnation: what the worker says about its role, its ports and its load stream."""
        worker, incarnation = self.worker, self.worker.incarnation
        self._inspect_at = self._clock() + _INSPECT_AGAIN_S
        info = await server_info(worker, self._client)
        if not info and worker.role is not Role.ENCODE:
            return
        self._inspected = incarnation
        if problem := role_mismatch(worker, info):
            logger.error("%s", problem)
        if port := bootstrap_port(worker, info):
            self._registry.update(worker.id, dataclasses.replace(worker.spec, bootstrap_port=port))
        self._listen(info)

    def _listen(self, info: dict[str, Any]) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        ports = stream_ports(info) if self._config.stream else None
        if ports is not None:
            self._stream = LoadStream(self.worker, ports, self._zmq, self._clock)
            logger.info("%s: load stream on port %d", self.worker.id, ports.base)

    def _stream_alive(self, now: float) -> bool:
        return self._stream is not None and now - self._stream.heard_at < _STREAM_SILENCE_S


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
