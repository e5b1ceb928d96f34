"""`--workers N`: N router processes behind one port, and the control process that owns the pools.

- Each process has a listening socket of its own on the same port (`SO_REUSEPORT`), made here and kept open here, so
  that connections which wait for a process that has died are served by its successor.
- In-flight work lies in shared memory (`counters`): each process writes its own row and sees the sum of all.
- Health checks, load reports, encoder lists and every change of the pools happen here, once; the processes mirror them.
- A process that dies is started again, and its row is cleared.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import socket
import tempfile
from collections.abc import Sequence
from typing import Any

from sgl_epd.errors import ConfigError, RequestError
from sgl_epd.net.client import ClientLimits, HttpClient
from sgl_epd_router.admission import AdmissionConfig, AdmissionQueue
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.build import add_named_workers, build_registry
from sgl_epd_router.child_process import ChildProcess
from sgl_epd_router.commands import AbortRequests, Command, DrainRouter, execute
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.metrics import RouterMetrics, render
from sgl_epd_router.metrics_api import MetricsApi, start_metrics_server
from sgl_epd_router.mirror import apply_outcomes, pool_state
from sgl_epd_router.scrape import Scraper
from sgl_epd_router.tls import client_context
from sgl_epd_router.upkeep import Upkeep
from sgl_epd_router.wire import Abort, Answer, Call, Message, Metrics, Outcomes, Ready, WantMetrics, Welcome

logger = logging.getLogger(__name__)
_STATE_INTERVAL_S = 0.2
_BACKLOG = 2048
_KILL_AFTER_S = 10.0
"""How much longer than the grace a process may take to end."""


class ControlProcess:
    def __init__(self, config: RouterConfig, memory: mmap.mmap, board_file: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.config = config
        self.board = CounterBoard(memory, processes=config.workers)
        self.registry = build_registry(config, self.board)
        add_named_workers(self.registry, config, self._loop.time())
        self.client = HttpClient(
            limits=ClientLimits(connect_timeout_s=config.connect_timeout_secs), tls=client_context(config)
        )
        self._sockets = listening_sockets(config.host, config.port, config.workers)
        self.children = [
            ChildProcess(index, sockets, board_file, self._greeting, self._on_message, self._on_end)
            for index, sockets in enumerate(self._sockets)
        ]
        self._scraper = Scraper(self.children)
        self._upkeep = Upkeep(config, self.registry, self.client, self._loop.time)
        self._draining = False
        self._send_soon: asyncio.Handle | None = None
        self._sent: object = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return int(self._sockets[0][0].getsockname()[1])

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until `stop` is set, then drain. Returns the exit code."""
        self.registry.on_change.append(self._state_changed)
        await self._upkeep.start()
        metrics = await start_metrics_server(self.config, MetricsApi(self._metrics_text))
        running = [asyncio.create_task(child.run()) for child in self.children]
        ticking = asyncio.create_task(self._tick())
        stopped = asyncio.create_task(stop.wait())
        ready = asyncio.create_task(self._announce())
        await asyncio.wait((*running, stopped), return_when=asyncio.FIRST_COMPLETED)
        failed = not stop.is_set()
        await self._stop_children(running)
        for task in (ticking, stopped, ready):
            task.cancel()
        await asyncio.gather(ticking, stopped, ready, return_exceptions=True)
        if metrics is not None:
            await metrics.close()
        await self._close()
        return 1 if failed else 0

    async def _metrics_text(self) -> bytes:
        snapshots = await self._scraper.gather()
        queue = AdmissionQueue(AdmissionConfig(), self.board)
        buckets = self.config.prometheus_duration_buckets
        return render(RouterMetrics(buckets), snapshots, self.registry, queue, self._loop.time())

    async def _announce(self) -> None:
        await asyncio.gather(*(child.ready.wait() for child in self.children))
        logger.info("router listens on %s:%d with %d processes", self.config.host, self.port, len(self.children))

    async def _stop_children(self, running: Sequence[asyncio.Task[None]]) -> None:
        grace_s = self.config.shutdown_grace_period_secs
        for child in self.children:
            child.stop(grace_s)
        # Nobody accepts any more, so a client must not be left waiting in the queue of our copy.
        self._close_sockets()
        _, late = await asyncio.wait(running, timeout=grace_s + _KILL_AFTER_S)
        for child in self.children:
            child.kill()
        if late:
            logger.error("%d router processes did not end in time and were killed", len(late))
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.error("%s", result)

    async def _close(self) -> None:
        self.registry.on_change.remove(self._state_changed)
        await self._upkeep.stop()
        await self.client.close()

    def _close_sockets(self) -> None:
        for sockets in self._sockets:
            for sock in sockets:
                sock.close()

    # -- the mirrors ---------------------------------------------------------------------------------------------

    def _greeting(self, index: int) -> list[Message]:
        return [Welcome(self.config, index), pool_state(self.registry, self._draining)]

    def _state_changed(self) -> None:
        """Many changes in one turn of the loop become one message."""
        if self._send_soon is None:
            self._send_soon = self._loop.call_soon(self._send_state)

    def _send_state(self) -> None:
        if self._send_soon is not None:
            self._send_soon.cancel()
            self._send_soon = None
        self._sent = self._fingerprint()
        state = pool_state(self.registry, self._draining)
        for child in self.children:
            child.send(state)

    async def _tick(self) -> None:
        """Load reports and breakers change often and without a word: the processes hear of them at intervals."""
        while True:
            await asyncio.sleep(_STATE_INTERVAL_S)
            if self._fingerprint() != self._sent:
                self._send_state()

    def _fingerprint(self) -> object:
        return [(w.id, w.load.correction.at, w.breaker.state) for w in self.registry.workers.values()]

    # -- what the processes say ------------------------------------------------------------------------------------

    def _on_message(self, child: ChildProcess, message: Message) -> None:
        if isinstance(message, Outcomes):
            if apply_outcomes(self.registry, message, self._loop.time()):
                self._state_changed()
        elif isinstance(message, Call):
            child.send(self._answer(message))
        elif isinstance(message, WantMetrics):
            self._spawn_scrape(child, message.number)
        elif isinstance(message, Metrics):
            self._scraper.arrived(child)
        elif isinstance(message, Ready):
            logger.info("router process %d is ready (pid %d)", child.index, message.pid)

    def _answer(self, call: Call) -> Answer:
        try:
            result = self._execute(call.command)
        except RequestError as error:
            return Answer(call.number, error=(error.status, error.error_type, error.message, error.code, error.param))
        # Before the answer: who asked shall see the change when it looks.
        self._send_state()
        return Answer(call.number, result)

    def _execute(self, command: Command) -> dict[str, Any]:
        if isinstance(command, DrainRouter):
            self._draining = command.draining
            return {"draining": command.draining}
        if isinstance(command, AbortRequests):
            for child in self.children:
                child.send(Abort(command.rid))
            return {"aborted": "wherever it runs"}
        return execute(self.registry, command, self._loop.time())

    def _spawn_scrape(self, child: ChildProcess, number: int) -> None:
        async def scrape() -> None:
            child.send(Metrics(number, await self._scraper.gather()))

        task = self._loop.create_task(scrape())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_end(self, child: ChildProcess) -> None:
        """What the process had in flight has ended with it, and what it counted must not get lost."""
        self.board.clear_row(child.index)
        self._scraper.retire(child)


def listening_sockets(host: str, port: int, processes: int) -> list[list[socket.socket]]:
    """For each process one socket an address of `host`, all on one port."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    groups: list[list[socket.socket]] = [[] for _ in range(processes)]
    for family, _, _, _, address in found:
        # SO_REUSEPORT would share the port with another router of the same user just as well, so it is tried without.
        with _bind(family, (address[0], port, *address[2:]), reuse_port=False) as trial:
            port = trial.getsockname()[1]
        for group in groups:
            group.append(_bind(family, (address[0], port, *address[2:]), reuse_port=True))
            group[-1].listen(_BACKLOG)
    return groups


def _bind(family: int, address: tuple[object, ...], *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}") from error
    return sock


async def serve_with_workers(config: RouterConfig) -> int:
    """Run `config.workers` router processes until SIGINT or SIGTERM; returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as board_file:
        os.ftruncate(board_file.fileno(), CounterBoard.size(config.workers))
        memory = mmap.mmap(board_file.fileno(), CounterBoard.size(config.workers))
        return await ControlProcess(config, memory, board_file.fileno()).run(stop)
