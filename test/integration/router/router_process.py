"""A router in processes of its own, as a user starts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

import psutil
from http_client import Reply, request


class RouterProcess:
    """`python -m sgl_epd.launch_router`, with its log in memory."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process, self.url = process, url
        self.log = b""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(65536):
            self.log += data

    async def request(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        return await request(self.url, method, path, body, **headers)

    async def ready(self, timeout_s: float = 30.0) -> None:
        """Wait for `/readiness`."""
        async with asyncio.timeout(timeout_s):
            while True:
                assert self.process.returncode is None, self.log.decode()
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    if (await self.request("GET", "/readiness")).status == 200:
                        return
                await asyncio.sleep(0.05)

    async def logged(self, text: bytes, timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while text not in self.log:
                await asyncio.sleep(0.02)

    def children(self) -> list[psutil.Process]:
        """The router processes behind the control process, by age."""
        found = psutil.Process(self.process.pid).children()
        return sorted(found, key=lambda child: child.create_time())

    async def end(self, signum: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signum)
        code = await asyncio.wait_for(self.process.wait(), timeout_s)
        await self._reader
        return code


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def router_process(*flags: str) -> AsyncIterator[RouterProcess]:
    """Start a router; afterwards make sure that none of its processes is left."""
    port = free_port()
    argv = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", "0", *flags]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sgl_epd.launch_router",
        *argv,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    router = RouterProcess(process, f"http://127.0.0.1:{port}")
    family: list[psutil.Process] = []
    try:
        yield router
        with contextlib.suppress(psutil.NoSuchProcess):
            family = router.children()
        await router.end()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        _, left = psutil.wait_procs(family, timeout=5)
        for child in left:
            child.kill()
        assert not left, f"left behind: {left}"
