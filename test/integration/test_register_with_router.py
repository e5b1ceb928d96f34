"""`--register` against a real router: known, forgotten when the worker is gone, known again after a router restart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from sgl_epd.worker.machine import free_port
from sgl_epd.worker.register import HEARTBEAT_S, Registration, start

WORKER = {"url": "http://127.0.0.1:9", "worker_type": "decode"}


@pytest.fixture
def port() -> int:
    return free_port(23450)


def start_router(port: int) -> subprocess.Popen[bytes]:
    argv = ["--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation", "--prometheus-port", "0"]
    return subprocess.Popen([sys.executable, "-m", "sgl_epd.launch_router", *argv], stderr=subprocess.DEVNULL)


@pytest.fixture
def router(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = start_router(port)
    yield process
    process.kill()
    process.wait(timeout=10)


@pytest.fixture
def worker(port: int) -> Iterator[int]:
    """Process id of a stand-in for a worker that registers itself; only its life matters here."""
    pid = os.fork()
    if pid == 0:
        try:
            start(Registration((f"http://127.0.0.1:{port}",), WORKER))
            time.sleep(60)
        finally:
            os._exit(0)
    yield pid
    try:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # the test has ended it


def wait_until(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def workers(port: int) -> list[str] | None:
    try:
        listed = httpx.get(f"http://127.0.0.1:{port}/workers", trust_env=False, timeout=5).json()["workers"]
    except httpx.HTTPError:
        return None
    return [entry["url"] for entry in listed if entry["worker_type"] == "decode"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_register(port: int, router: subprocess.Popen[bytes], worker: int) -> None:
    wait_until(lambda: workers(port) == [WORKER["url"]], 20 + HEARTBEAT_S)
    router.kill()
    router.wait(timeout=10)
    again = start_router(port)
    try:
        wait_until(lambda: workers(port) == [WORKER["url"]], 20 + 2 * HEARTBEAT_S)
        os.kill(worker, 9)
        os.waitpid(worker, 0)
        wait_until(lambda: workers(port) == [], 10)  # it signs off when its parent dies
    finally:
        again.kill()
        again.wait(timeout=10)
