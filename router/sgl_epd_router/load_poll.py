"""Asks one worker for its load: `/v1/loads` where it exists, a stock encoder's `/metrics` otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sgl_epd.errors import ConnectError, TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd_router.cancel import worker_headers
from sgl_epd_router.load import LoadReport
from sgl_epd_router.load_report import EncoderCounters, parse_loads
from sgl_epd_router.worker import Role, Worker

logger = logging.getLogger(__name__)
_TIMEOUT_S = 5.0
_GIVE_UP_S = 60.0


class LoadPoller:
    """The poller of one worker; remembers which way of asking works."""

    def __init__(self, worker: Worker, client: HttpClient, clock: Callable[[], float]) -> None:
        self._worker = worker
        self._client = client
        self._clock = clock
        self._by_metrics = False
        self._counters = EncoderCounters()
        self.next_at = 0.0

    async def poll(self) -> None:
        """Ask once. Only the health check decides about health, but a refused connection brings it forward."""
        worker = self._worker
        before = worker.load.own
        try:
            report = await self._ask()
        except ConnectError:
            worker.health.suspect(self._clock())
            return
        except (TransportError, TimeoutError):
            return
        except ValueError as error:
            self.next_at = self._clock() + _GIVE_UP_S
            logger.info("no load from %s, asking again in %d s: %s", worker.id, _GIVE_UP_S, error)
            return
        now = self._clock()
        worker.health.seen_at = now
        worker.load.observe(report, now, before)

    async def _ask(self) -> LoadReport:
        role = self._worker.role
        if not self._by_metrics:
            status, body = await self._get("/v1/loads?include=core")
            if status == 200:
                return parse_loads(body, role)
            if status != 404 or role is not Role.ENCODE:
                raise ValueError(f"/v1/loads answers {status}")
            self._by_metrics = True
        status, body = await self._get("/metrics")
        if status != 200:
            self._by_metrics = False
            raise ValueError(f"/metrics answers {status}; start the encoder with --enable-metrics")
        return self._counters.observe(body, self._clock())

    async def _get(self, target: str) -> tuple[int, bytes]:
        url = self._worker.url + target
        reply = await self._client.fetch("GET", url, headers=worker_headers(self._worker), timeout_s=_TIMEOUT_S)
        return reply.status, reply.body
