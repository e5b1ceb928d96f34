"""What a request holds on to while its answer streams."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tracemalloc

from sgl_epd.errors import TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import RawHeaders
from sgl_epd.net.server import HttpServer
from sgl_epd_router.app import RouterApp
from sgl_epd_router.args import parse_args

BODY_MIB = 8
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


async def test_a_large_body_is_let_go_of_when_its_answer_begins() -> None:
    """Or a few hundred long answers about images would take all memory there is."""
    finish = asyncio.Event()

    async def worker(exchange: Exchange) -> None:
        if exchange.method == "GET":
            exchange.respond(200, b"{}")
            return
        exchange.body = b""
        exchange.start(200, [(b"content-type", b"text/event-stream")])
        exchange.write(EVENT)
        await finish.wait()
        exchange.write(b"data: [DONE]\n\n")
        exchange.end()

    server = HttpServer(worker)
    url = f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    flags = ["--host", "127.0.0.1", "--port", "0", "--disable-health-check", "--prometheus-port", "0"]
    app = RouterApp(parse_args([*flags, "--worker-urls", url], environ={}))
    port = await app.start()
    client = HttpClient()
    image = base64.b64encode(os.urandom(BODY_MIB * 3 * 2**18)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": [part]}]}).encode()
    tracemalloc.start()
    try:
        streams = [Stream() for _ in range(3)]
        for stream in streams:
            origin = client.origin(f"http://127.0.0.1:{port}")
            client.send(origin, "POST", "/v1/chat/completions", stream, body=[body])
            await stream.first.wait()
        held, _ = tracemalloc.get_traced_memory()
        assert held < 4 * 2**20
        finish.set()
        for stream in streams:
            await stream.ended.wait()
            assert stream.data == EVENT + b"data: [DONE]\n\n"
    finally:
        tracemalloc.stop()
        await client.close()
        await app.stop(grace_s=0)
        await server.close()
