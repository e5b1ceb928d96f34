"""The control process's view of one router process: starting it, talking with it, and noticing its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence

from sgl_epd_router.metric_store import Snapshot
from sgl_epd_router.wire import Link, Message, Metrics, Ready, Stop, WireError

logger = logging.getLogger(__name__)
_FIRST_RESTART_S = 0.1
_LONGEST_RESTART_S = 5.0
_STABLE_S = 10.0
MAX_FAILED_STARTS = 5
"""Ends before the process was ready, in a row, after which something must be wrong that a restart does not mend."""


class ChildFailedError(Exception):
    """A router process cannot be started."""


class ChildProcess:
    """Runs one router process, again and again, until `stop`."""

    def __init__(
        self,
        index: int,
        sockets: Sequence[socket.socket],
        board_file: int,
        greeting: Callable[[int], Sequence[Message]],
        on_message: Callable[[ChildProcess, Message], None],
        on_end: Callable[[ChildProcess], None],
    ) -> None:
        self.index = index
        self.ready = asyncio.Event()
        self._stopping = False
        self.pid = 0
        self.restarts = 0
        self.last_metrics: Snapshot = {}
        self._sockets = sockets
        self._board_file = board_file
        self._greeting = greeting
        self._on_message = on_message
        self._on_end = on_end
        self._link: Link | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Raises `ChildFailedError` when the process keeps ending before it is ready."""
        failed_starts, delay_s = 0, _FIRST_RESTART_S
        loop = asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            code = await self._run_once()
            failed_starts = 0 if self.ready.is_set() else failed_starts + 1
            self.ready.clear()
            self._on_end(self)
            if self._stopping:
                return
            if failed_starts >= MAX_FAILED_STARTS:
                raise ChildFailedError(f"router process {self.index} ended with code {code} before it was ready")
            logger.error("router process %d ended with code %d, starting it again", self.index, code)
            delay_s = _FIRST_RESTART_S if loop.time() - started_at > _STABLE_S else delay_s
            await asyncio.sleep(delay_s)
            delay_s = min(_LONGEST_RESTART_S, delay_s * 2)
            self.restarts += 1

    def stop(self, grace_s: float) -> None:
        """Let it finish what runs; it is not started again."""
        self._stopping = True
        self.send(Stop(grace_s))

    def send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _run_once(self) -> int:
        """From the start of the process to its end; returns its exit code."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await self._spawn(theirs)
        self.pid = self._process.pid
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._link = link = Link(reader, writer)
        for message in self._greeting(self.index):
            link.send(message)
        try:
            await self._read(link)
        except WireError:
            logger.exception("router process %d", self.index)
            self.kill()
        finally:
            self._link = None
            await link.close()
        return await self._process.wait()

    async def _spawn(self, control: socket.socket) -> asyncio.subprocess.Process:
        files = [control.fileno(), self._board_file, *(sock.fileno() for sock in self._sockets)]
        # A session of its own: Ctrl-C in a terminal reaches the control process only, which then drains the others.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sgl_epd_router.child",
            *map(str, files),
            pass_fds=files,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )

    async def _read(self, link: Link) -> None:
        while (message := await link.receive()) is not None:
            if isinstance(message, Ready):
                self.ready.set()
            elif isinstance(message, Metrics):
                self.last_metrics = message.snapshots[0]
            self._on_message(self, message)
