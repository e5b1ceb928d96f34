"""A router in this process in front of fake workers, and the checks that nothing is left when a test ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fakes import FakeEncoder, FakeWorker, KvFabric
from http_client import Link, Reply, request

from sgl_epd.config import parse
from sgl_epd_router.app import RouterApp
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.worker import Worker

FAST = ("--retry-initial-backoff-ms", "1", "--retry-max-backoff-ms", "5", "--health-check-interval-secs", "0.1")
"""Waits that a test would sit through are made short; everything else has its default."""


def make_config(*argv: str) -> RouterConfig:
    """A configuration as the command line gives it, untouched by the environment."""
    return parse(RouterConfig, argv, prog="router", description="", environ={})


class Cluster:
    """Fake workers of all roles and the router over them."""

    def __init__(self, prefill: int, decode: int, regular: int, encode: int) -> None:
        self.fabric = KvFabric()
        self.prefill = [FakeWorker("prefill", self.fabric, name=f"prefill-{i}") for i in range(prefill)]
        self.decode = [FakeWorker("decode", self.fabric, name=f"decode-{i}") for i in range(decode)]
        self.regular = [FakeWorker("regular", self.fabric, name=f"regular-{i}") for i in range(regular)]
        self.encode = [FakeEncoder(f"encode-{i}") for i in range(encode)]
        self._app: RouterApp | None = None
        self.url = ""

    @property
    def app(self) -> RouterApp:
        assert self._app is not None, "the router was not started"
        return self._app

    @property
    def workers(self) -> list[FakeWorker]:
        return [*self.prefill, *self.decode, *self.regular]

    def flags(self) -> list[str]:
        """The workers as the router's command line names them."""
        staged = bool(self.prefill or self.decode)
        flags = ["--epd-disaggregation" if self.encode else "--pd-disaggregation"] if staged else []
        for index, worker in enumerate(self.prefill):
            worker.bootstrap_port = 8998 + index
            flags += ["--prefill", worker.url, str(worker.bootstrap_port), str(worker.encoders.port)]
        for worker in self.decode:
            flags += ["--decode", worker.url]
        for encoder in self.encode:
            flags += ["--encode", encoder.url]
        return [*flags, "--worker-urls", *(worker.url for worker in self.regular)] if self.regular else flags

    async def start_workers(self) -> None:
        for worker in (*self.workers, *self.encode):
            await worker.start()

    async def start_router(self, *flags: str) -> None:
        self._app = RouterApp(make_config("--host", "127.0.0.1", "--port", "0", *FAST, *self.flags(), *flags))
        self.url = f"http://127.0.0.1:{await self.app.start()}"

    async def stop(self) -> None:
        if self._app is not None:
            await self._app.stop(grace_s=2.0)
        for worker in (*self.workers, *self.encode):
            await worker.stop()

    # -- what tests do ---------------------------------------------------------------------------------------------

    async def chat(self, text: str = "hello", **fields: Any) -> Reply:
        return await request(self.url, "POST", "/v1/chat/completions", chat(text, **fields))

    async def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        return await request(self.url, method, path, body, **headers)

    async def link(self) -> Link:
        return await Link.open(self.url)

    def router_worker(self, worker: FakeWorker | FakeEncoder) -> Worker:
        """The router's record of a fake worker."""
        return next(w for w in self.app.registry.workers.values() if w.url == worker.url)

    def in_flight(self) -> dict[str, tuple[int, ...]]:
        """Own load of each worker that is not zero."""
        loads = {w.id: tuple(w.load.own) for w in self.app.registry.workers.values()}
        return {name: load for name, load in loads.items() if any(load)}

    async def quiet(self, timeout_s: float = 5.0) -> None:
        """Wait until router and workers have nothing in hand. Raises AssertionError with what is left."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while left := self._left():
            assert asyncio.get_running_loop().time() < deadline, f"still busy: {left}"
            await asyncio.sleep(0.005)

    def _left(self) -> dict[str, Any]:
        found = {
            "in flight at": self.in_flight(),
            "requests in the router": self.app.server.active_requests,
            "live in workers": {w.name: len(w.live) for w in self.workers if w.live},
            "sides in rooms": self.fabric.waiting,
        }
        return {name: value for name, value in found.items() if value}

    def check_conduct(self) -> None:
        """What a router must never do, whatever the test was about."""
        assert not self.fabric.collisions, "two requests shared a bootstrap room"
        assert not self.fabric.reused, "a retry went into a used bootstrap room"
        assert not self.fabric.mismatches, "prefill and decode got different bodies"
        assert not sum(w.server.pipelined for w in self.workers), "a request was sent before the answer to the last"
        for worker in self.workers:
            seen = [leg.rid for leg in worker.requests if leg.rid]
            assert len(seen) == len(set(seen)), "a request id was used twice at one worker"


@contextlib.asynccontextmanager
async def cluster(
    prefill: int = 0, decode: int = 0, regular: int = 0, encode: int = 0, flags: Sequence[str] = (), start: bool = True
) -> AsyncIterator[Cluster]:
    """Start workers and router; afterwards stop all and check that nothing is left behind."""
    tasks_before, sockets_before = asyncio.all_tasks(), open_sockets()
    made = Cluster(prefill, decode, regular, encode)
    try:
        await made.start_workers()
        if start:
            await made.start_router(*flags)
        yield made
        if start:
            await made.quiet()
            made.check_conduct()
    finally:
        await made.stop()
    await nothing_left(tasks_before, sockets_before)


async def nothing_left(tasks: set[asyncio.Task[Any]], sockets: Counter[str], timeout_s: float = 2.0) -> None:
    """Wait until every task and socket that came since is gone."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while left := [*(asyncio.all_tasks() - tasks - {asyncio.current_task()}), *(open_sockets() - sockets)]:
        assert asyncio.get_running_loop().time() < deadline, f"left behind: {left}"
        await asyncio.sleep(0.005)


def open_sockets() -> Counter[str]:
    """The open sockets and pipes of this process."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/self/fd/{name}")] += 1
    return Counter({target: count for target, count in found.items() if target.startswith(("socket:", "pipe:"))})


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request; `fields` go into the body as they are."""
    return {"model": "fake-vl", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


def chat_with_images(*urls: str, text: str = "what is this?", **fields: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = chat(text, **fields)
    body["messages"] = [{"role": "user", "content": parts}]
    return body
