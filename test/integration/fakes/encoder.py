"""A fake SGLang encoder-only server: `/encode` with its checks, health, and the Prometheus counters it is read by.

Source: `sglang/srt/disaggregation/encoder/http_server.py` and `observability/metrics_collector.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .wire import Connection, Request, Server


class FakeEncoder:
    """`gate` holds every encode until it is set; `reply` replaces the answer: (status, body)."""

    def __init__(self, name: str = "encode") -> None:
        self.name = name
        self.server = Server(self._serve)
        self.port = 0
        self.encoded: list[dict[str, Any]] = []
        self.control: list[Request] = []
        self.received = self.finished = self.failed = 0
        self.health_status = 200
        self.reply: tuple[int, bytes] | None = None
        self.gate: asyncio.Event | None = None

    async def start(self) -> FakeEncoder:
        self.port = await self.server.start(self.port)
        return self

    async def kill(self) -> None:
        await self.server.stop(reset=True)

    async def stop(self) -> None:
        await self.server.stop(reset=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, connection: Connection, request: Request) -> None:
        if request.path == "/encode":
            await self._encode(connection, request)
            return
        self.control.append(request)
        if request.path in ("/health", "/health_generate"):
            await connection.reply(self.health_status)
        elif request.path == "/metrics":
            await connection.reply(200, self._metrics().encode(), "text/plain; version=0.0.4")
        else:
            await connection.reply_json({"detail": "Not Found"}, 404)

    async def _encode(self, connection: Connection, request: Request) -> None:
        self.received += 1
        body = request.json()
        problem = self._check(body)
        if problem:
            self.failed += 1
            status = {"status": "error", "message": problem, "req_id": body.get("req_id")}
            await connection.reply_json(status, 400)
            return
        if self.gate is not None:
            await self.gate.wait()
        if self.reply is not None:
            self.failed += 1
            await connection.reply(self.reply[0], self.reply[1])
            return
        self.encoded.append(body)
        self.finished += 1
        await connection.reply_json(None)

    @staticmethod
    def _check(body: dict[str, Any]) -> str | None:
        if not body.get("req_id"):
            return "req_id must be a non-empty string"
        if not body.get("mm_items"):
            return "mm_items must be a non-empty list"
        if not 0 <= body.get("part_idx", -1) < body.get("num_parts", 0):
            return "part_idx is out of range"
        return None

    def _metrics(self) -> str:
        labels = 'model_name="fake-vl",dp_rank="0",modality="image"'
        return (
            "# TYPE sglang:encoder_requests_received_total counter\n"
            f"sglang:encoder_requests_received_total{{{labels}}} {float(self.received)}\n"
            "# TYPE sglang:encoder_requests_total counter\n"
            f'sglang:encoder_requests_total{{{labels},status="success"}} {float(self.finished)}\n'
            f'sglang:encoder_requests_total{{{labels},status="error"}} {float(self.failed)}\n'
        )
