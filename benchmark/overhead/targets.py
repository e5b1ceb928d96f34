"""The routers that are compared: how each is started in PD mode, and how its CPU time is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from overhead.mocks import pin, process_seconds

REPO = Path(__file__).resolve().parent.parent.parent
BOOTSTRAP_PORT = 8998


@dataclass(frozen=True)
class Site:
    """Where the pieces listen and run."""

    router_port: int
    metrics_port: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    router_core: int
    load_core: int


@dataclass(frozen=True)
class Target:
    """One router. `command` is None for `direct`: the client talks to a decode worker without any router."""

    name: str
    command: Callable[[Site], list[str]] | None
    legs: int = 2


def _pd_flags(site: Site, mode: str = "--pd-disaggregation") -> list[str]:
    flags = [mode, "--host", "127.0.0.1", "--port", str(site.router_port)]
    for port in site.prefill:
        flags += ["--prefill", f"http://127.0.0.1:{port}", str(BOOTSTRAP_PORT)]
    for port in site.decode:
        flags += ["--decode", f"http://127.0.0.1:{port}"]
    return flags


def _ours(site: Site, *extra: str) -> list[str]:
    command = [sys.executable, "-m", "sgl_epd.launch_router", *_pd_flags(site)]
    return [*command, "--prometheus-port", str(site.metrics_port), *extra]


def targets(peers_python: Path) -> list[Target]:
    """Ours with the peers' policy, ours as it comes, the peers, and no router at all.

    vllm-router sends its two legs one after the other, as vLLM's prefill must end first; the others send both at once.
    """

    def peer(*module: str, mode: str = "--pd-disaggregation") -> Callable[[Site], list[str]]:
        return lambda site: [
            str(peers_python),
            *("-m", *module),
            *_pd_flags(site, mode),
            *("--policy", "random", "--prometheus-port", str(site.metrics_port)),
        ]

    return [
        Target("direct", None, legs=1),
        Target("sgl-epd", lambda site: _ours(site, "--policy", "random")),
        Target("sgl-epd (default policies)", _ours),
        Target("mini_lb", peer("sglang_router.launch_router", "--mini-lb")),
        Target("sglang-router", peer("sglang_router.launch_router")),
        Target("vllm-router", peer("vllm_router.launch_router", mode="--vllm-pd-disaggregation")),
    ]


class RunningRouter:
    """A started router, pinned to its core, with its log in a file."""

    def __init__(self, target: Target, site: Site, log: Path) -> None:
        assert target.command is not None
        path = os.pathsep.join([str(REPO), str(REPO / "router")])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            target.command(site),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            preexec_fn=pin(site.router_core),
        )
        self.name, self.log_path = target.name, log

    def wait_ready(self, port: int, body: bytes, timeout_s: float = 90.0) -> None:
        """Until it answers a chat request with 200 several times in a row."""
        deadline, good = time.monotonic() + timeout_s, 0
        while good < 5:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at start, see {self.log_path}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not answer within {timeout_s} s, see {self.log_path}")
            if _probe(port, body):
                good += 1
            else:
                good = 0
                time.sleep(0.2)

    def cpu_s(self) -> float:
        """CPU seconds so far of the router's processes, all threads, those that ended included."""
        processes = [self._process.pid, *(p.pid for p in psutil.Process(self._process.pid).children(recursive=True))]
        return sum(map(process_seconds, processes))

    def rss_mb(self) -> float:
        root = psutil.Process(self._process.pid)
        return float(sum(p.memory_info().rss for p in [root, *root.children(recursive=True)])) / 2**20

    def stop(self) -> None:
        """End the whole process group and wait for it."""
        for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
            break
        self._process.wait()
        self._log.close()


def _probe(port: int, body: bytes) -> bool:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status == 200 and b"choices" in reply.read()
    except (urllib.error.URLError, OSError):
        return False
