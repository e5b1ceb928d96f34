"""Real workers die and clients leave; the rest goes on, and a supervised host comes back by itself."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from client import ask, assert_same, stream_events
from cluster import Cluster
from pictures import chat, picture

from sgl_epd.demo.samples import sample
from sgl_epd.worker.machine import free_port, is_free

START_S, BACK_S, END_S = 180.0, 90.0, 60.0
BODY = chat("What is in the picture?", [picture(40)])

pytestmark = pytest.mark.timeout(300)


class Host:
    """`python -m sgl_epd.serve` with two encoders, one prefill and one decode worker."""

    def __init__(self, model: str, folder: Path) -> None:
        self.port, self.folder = free_port(24500), folder
        self.url = f"http://127.0.0.1:{self.port}"
        pools = ["--encode", "2", "--prefill", "1", "--decode", "1", "--worker-port-base", str(free_port(24510))]
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--log-dir", str(folder)]
        with (folder.parent / "serve.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sgl_epd.serve", "--model-path", model, *pools, *listen],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def status(self, name: str) -> dict[str, Any]:
        status = json.loads((self.folder / "status.json").read_text())
        return next(entry for entry in status["processes"] if entry["name"] == name)

    def log(self) -> str:
        return (self.folder.parent / "serve.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        os.kill(self.status(name)["pid"], signal.SIGKILL)

    def wait_serving(self, within_s: float) -> None:
        def ready() -> bool:
            try:
                return httpx.get(f"{self.url}/readiness", timeout=5, trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(ready, within_s, self.log)


def wait_until(condition: Callable[[], bool], within_s: float, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {within_s} s\n{explain()}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def host(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    it = Host(cluster.model, tmp_path_factory.mktemp("host") / "logs")
    try:
        it.wait_serving(START_S)
        yield it
    finally:
        it.process.send_signal(signal.SIGTERM)
        try:
            it.process.wait(timeout=END_S)
        finally:
            if it.process.poll() is None:
                it.process.kill()


@pytest.fixture
def expected(cluster: Cluster) -> Any:
    return ask(cluster.servers["mixed"].url, BODY)


def post(host: Host, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{host.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)


@pytest.mark.parametrize("victim", ["encode-0", "prefill-0", "decode-0"])
def test_killed_worker(host: Host, expected: Any, victim: str) -> None:
    """Requests in flight end with an answer or an error in OpenAI's format; the worker is replaced; answers are right
    again."""
    restarts = host.status(victim)["restarts"]
    bodies = [chat("Describe it.", [picture(50 + n)], max_tokens=64) for n in range(6)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
        waiting = [threads.submit(post, host, body) for body in bodies]
        time.sleep(0.1)
        host.kill(victim)
        replies = [reply.result(timeout=80) for reply in waiting]
    for reply in replies:
        assert reply.status_code in (200, 502, 503), reply.text
        data = reply.json()
        assert (
            data["choices"][0]["message"]["content"] if reply.status_code == 200 else data.get("error", data)["message"]
        )
    wait_until(lambda: host.status(victim)["restarts"] > restarts, BACK_S, host.log)
    wait_until(lambda: host.status(victim)["state"] == "ready", BACK_S, host.log)
    host.wait_serving(BACK_S)
    assert_same(ask(host.url, BODY), expected)


def test_client_leaves_in_mid_stream(cluster: Cluster) -> None:
    """Whatever the client began is given up on every worker, and the next request is right."""
    router = cluster.servers["router"].url
    body = chat("Tell me a long story.", [picture(60)], max_tokens=4000, ignore_eos=True, stream=True)
    with httpx.stream("POST", f"{router}/v1/chat/completions", json=body, timeout=30, trust_env=False) as reply:
        assert reply.status_code == 200
        next(reply.iter_bytes())
    for name in ("prefill", "decode"):
        wait_until(lambda url=cluster.servers[name].url: busy(url) == 0, 10)
    assert_same(ask(router, BODY), ask(cluster.servers["mixed"].url, BODY))


def busy(worker_url: str) -> int:
    load = httpx.get(f"{worker_url}/v1/loads?include=all", trust_env=False, timeout=10).json()["loads"][0]
    return int(load["num_running_reqs"] + load["num_waiting_reqs"])


def test_streams_do_not_mix(cluster: Cluster) -> None:
    """Many clients at once, each with its own picture: every answer is the one for that picture. Pictures that the
    model knows, since a toss-up between two words may fall otherwise in a batch of another size."""
    cases = [sample("number", seed) for seed in range(12)]
    bodies = [
        {"model": "demo", "messages": case.messages(), "temperature": 0, "max_tokens": 16, "stream": True}
        for case in cases
    ]
    mixed, router = cluster.servers["mixed"].url, cluster.servers["router"].url

    def text(url: str, body: dict[str, Any]) -> str:
        events = stream_events(url, body)
        assert events[-1] == "[DONE]"
        return "".join(
            choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]
        )

    one_by_one = [text(mixed, body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
        at_once = list(threads.map(lambda body: text(router, body), bodies))
    assert at_once == one_by_one


def test_host_ends_without_a_trace(host: Host) -> None:
    """SIGTERM: exit code 0, no process, no port, no shared memory of ours is left."""
    tree = psutil.Process(host.process.pid).children(recursive=True)
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", host.log())]
    assert len(tree) >= 8
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(timeout=END_S) == 0, host.log()
    assert not [process for process in tree if process.is_running()]
    wait_until(lambda: all(is_free(port, "127.0.0.1") for port in ports), 15)
