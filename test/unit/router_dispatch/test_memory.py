"""What a request holds on to while its answer streams."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sgl_epd.errors import TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import RawHeaders
from sgl_epd.net.server import Handler, HttpServer
from sgl_epd_router.app import RouterApp
from sgl_epd_router.args import parse_args

BODY_MIB = 8
DONE = b"data: [DONE]\n\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


class Stream:
    """A client's side of one streamed answer."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.ended = asyncio.Event()
        self.data = b""

    def on_head(self, status: int, headers: RawHeaders) -> None:
        assert status == 200

    def on_data(self, data: bytes) -> None:
        self.data += data
        self.first.set()

    def on_end(self) -> None:
        self.ended.set()

    def on_error(self, error: TransportError) -> None:
        raise AssertionError(error)


def worker(finish: asyncio.Event) -> Handler:
    """Streams one event, then waits for `finish`."""

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            exchange.respond(200, b"{}")
            return
        exchange.body = b""
        exchange.start(200, [(b"content-type", b"text/event-stream")])
        exchange.write(EVENT)
        await finish.wait()
        exchange.write(DONE)
        exchange.end()

    return handle


@asynccontextmanager
async def routed(finish: asyncio.Event) -> AsyncIterator[tuple[HttpClient, str]]:
    """A router over a prefill and a decode worker; a client, and the router's URL."""
    servers = [HttpServer(worker(finish)), HttpServer(worker(finish))]
    p, d = [f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}" for server in servers]
    flags = ["--host", "127.0.0.1", "--port", "0", "--disable-health-check", "--prometheus-port", "0"]
    app = RouterApp(parse_args([*flags, "--pd-disaggregation", "--prefill", p, "--decode", d], environ={}))
    client = HttpClient()
    try:
        yield client, f"http://127.0.0.1:{await app.start()}"
    finally:
        await client.close()
        await app.stop(grace_s=0)
        for server in servers:
            await server.close()


def ask(client: HttpClient, url: str, body: bytes) -> Stream:
    stream = Stream()
    client.send(client.origin(url), "POST", "/v1/chat/completions", stream, body=[body])
    return stream


async def test_a_large_body_is_let_go_of_when_its_answer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a few hundred long answers about images would take all memory there is."""
    monkeypatch.setattr("sgl_epd_router.judge.PREFILL_GRACE_S", 0.02)  # prefill's own answer does not end here
    finish = asyncio.Event()
    image = base64.b64encode(os.urandom(BODY_MIB * 3 * 2**18)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": [part]}]}).encode()
    async with routed(finish) as (client, url):
        tracemalloc.start()
        streams = []
        for _ in range(3):
            streams.append(ask(client, url, body))
            await streams[-1].first.wait()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 4 * 2**20
        finish.set()
        for stream in streams:
            await stream.ended.wait()
            assert stream.data == EVENT + DONE


async def test_requests_leave_nothing_to_the_garbage_collector() -> None:
    """Its pauses would be paid by other requests."""
    finish = asyncio.Event()
    finish.set()
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with routed(finish) as (client, url):
        for _ in range(3):
            await ask(client, url, body).ended.wait()
        await asyncio.sleep(0.01)
        gc.collect()
        gc.disable()
        for _ in range(20):
            await ask(client, url, body).ended.wait()
        found = gc.collect()
        gc.enable()
        assert found < 20, "less than one object for each request: what health checks and the like leave"
