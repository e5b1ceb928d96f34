"""Real SGLang workers and our router on loopback, started once for the whole test session.

Every process leads its own process group and asks the kernel to be killed with its parent, so that nothing survives a
test run, however it ends.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from sgl_epd.worker.machine import free_port

READY_TIMEOUT_S = 240.0
FIRST_PORT = 23000
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Server:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    bootstrap_port: int | None = None
    encoder_bootstrap_port: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Cluster:
    """Starts servers, waits for them, ends them."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.servers: dict[str, Server] = {}
        self._next_port = FIRST_PORT

    def take_port(self) -> int:
        port = free_port(self._next_port)
        self._next_port = port + 1
        return port

    def worker(self, name: str, role: str, *flags: str, **ports: int) -> Server:
        port = self.take_port()
        argv = ["sgl_epd.launch_server", "--role", role, "--model-path", self.model]
        return self._start(name, port, [*argv, "--host", "127.0.0.1", "--port", str(port), *flags], **ports)

    def prefill(self, name: str, encoders: Sequence[Server], *flags: str) -> Server:
        bootstrap, encoder_bootstrap = self.take_port(), self.take_port()
        ports = ["--disaggregation-bootstrap-port", str(bootstrap), "--encoder-bootstrap-port", str(encoder_bootstrap)]
        urls = ["--encoder-urls", *(encoder.url for encoder in encoders)] if encoders else []
        return self.worker(
            name, "prefill", *ports, *urls, *flags, bootstrap_port=bootstrap, encoder_bootstrap_port=encoder_bootstrap
        )

    def router(self, name: str, *flags: str) -> Server:
        port = self.take_port()
        argv = ["sgl_epd.launch_router", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", "0"]
        return self._start(name, port, [*argv, *flags])

    def _start(self, name: str, port: int, module_argv: Sequence[str], **ports: int) -> Server:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module_argv],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        server = Server(name, port, process, log, **ports)
        self.servers[name] = server
        return server

    def wait_ready(self) -> None:
        """Raises `RuntimeError` with the end of the log of a server that died or did not come up."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        for server in self.servers.values():
            # The router is ready when it has seen its workers healthy, a little after they are.
            path = "/readiness" if server.name == "router" else "/health"
            while not _answers(server.url + path):
                if server.process.poll() is not None:
                    raise RuntimeError(f"{server.name} ended with {server.process.returncode}:\n{server.tail()}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{server.name} not ready after {READY_TIMEOUT_S} s:\n{server.tail()}")
                time.sleep(0.25)

    def stop(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        server = self.servers.pop(name)
        _signal_group(server.process, sig)
        try:
            server.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            _signal_group(server.process, signal.SIGKILL)
            server.process.wait(timeout=20)
        _signal_group(server.process, signal.SIGKILL)

    def close(self) -> None:
        for name in list(self.servers):
            self.stop(name)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    try:
        os.killpg(process.pid, sig)
    except ProcessLookupError:
        return  # the whole group has ended


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
