"""Listens to SGLang's ZMQ load stream of one worker: its load as soon as it changes, without asking.

A worker started with `--kv-events-config` and `--load-publish-endpoint` names the stream in `/server_info`
(`kv_events.load_endpoint_port_base`); each data-parallel rank publishes on a port of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from sgl_epd_router.load_report import RankLoad, parse_load_stat, sum_ranks
from sgl_epd_router.worker import Worker

logger = logging.getLogger(__name__)
_TOPIC = b"load"
_MAX_RANKS = 1024
_BATCH = 256
"""Messages read in one go, so that a flood cannot hold the loop."""


@dataclasses.dataclass(frozen=True, slots=True)
class StreamPorts:
    base: int
    ranks: int


def stream_ports(server_info: Mapping[str, Any]) -> StreamPorts | None:
    """Where a worker's `/server_info` says that its load stream is."""
    described = server_info.get("kv_events")
    if not isinstance(described, Mapping):
        return None
    base, ranks = described.get("load_endpoint_port_base"), described.get("dp_size", 1)
    if not isinstance(base, int) or not isinstance(ranks, int) or not 0 < ranks <= _MAX_RANKS:
        return None
    return StreamPorts(base, ranks) if 0 < base < 65536 - ranks else None


class LoadStream:
    """One SUB socket a rank; ZMQ reconnects by itself when the worker comes back."""

    def __init__(self, worker: Worker, ports: StreamPorts, context: zmq.Context[Any], clock: Callable[[], float]):
        self._worker = worker
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._loads: dict[int, RankLoad] = {}
        self._sockets: list[zmq.Socket[bytes]] = []
        self.heard_at = float("-inf")
        host = f"[{worker.host}]" if ":" in worker.host else worker.host
        for rank in range(ports.ranks):
            self._open(context, f"tcp://{host}:{ports.base + rank}", rank)

    def close(self) -> None:
        for socket in self._sockets:
            self._loop.remove_reader(_descriptor(socket))
            socket.close(linger=0)
        self._sockets.clear()

    def _open(self, context: zmq.Context[Any], endpoint: str, rank: int) -> None:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.SUBSCRIBE, _TOPIC)
        socket.connect(endpoint)
        self._sockets.append(socket)
        self._loop.add_reader(_descriptor(socket), self._read, socket, rank)
        # The descriptor signals changes only, so what came before it was watched must be looked for.
        self._loop.call_soon(self._read, socket, rank)

    def _read(self, socket: zmq.Socket[bytes], rank: int) -> None:
        if socket.closed:
            return
        for _ in range(_BATCH):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(rank, frames)
        self._loop.call_soon(self._read, socket, rank)

    def _take(self, rank: int, frames: list[bytes]) -> None:
        try:
            _, load = parse_load_stat(frames)
        except ValueError as error:
            logger.warning("load stream of %s: %s", self._worker.id, error)
            return
        now = self._clock()
        self.heard_at = self._worker.health.seen_at = now
        self._loads[rank] = load
        if len(self._loads) == len(self._sockets):
            self._worker.load.observe(sum_ranks(self._loads.values(), self._worker.role), now)


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))
