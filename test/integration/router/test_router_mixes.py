"""Deployments that are not simply P + D or E + P + D, and how a lost worker is reported.

Rows 61 (sglang#3802: refuses to start when a worker is ill), 76 (sglang#14288, #14293: an exit is not reported).
"""

from __future__ import annotations

import asyncio
import logging

import pytest
from cluster import Cluster, chat_with_images, cluster
from fakes import FakeWorker, Status, answers

CHAT = "/v1/chat/completions"


async def test_encoders_before_an_aggregated_worker() -> None:
    """E + PD: the aggregated worker gets the encoder list."""
    async with cluster(regular=1, encode=2, start=False) as c:
        await c.start_router("--encoder-bootstrap-port", str(c.regular[0].encoders.port))
        async with asyncio.timeout(5):
            await c.regular[0].encoders.becomes({e.url for e in c.encode})
        body = chat_with_images("http://x/a", "http://x/b")
        reply = await c.request("POST", CHAT, body)
        assert answers.digest(body) in reply.body.decode()
        assert sum(len(e.encoded) for e in c.encode) == 2


async def until_healthy(c: Cluster, worker: FakeWorker, healthy: bool) -> None:
    async with asyncio.timeout(10):
        while c.router_worker(worker).healthy is not healthy:
            await asyncio.sleep(0.01)


async def test_an_aggregated_worker_stands_in_for_a_lost_stage() -> None:
    async with cluster(prefill=1, decode=1, regular=1) as c:
        assert (await c.chat("pd")).status == 200
        assert (len(c.prefill[0].requests), len(c.regular[0].requests)) == (1, 0)
        await c.prefill[0].kill()
        await until_healthy(c, c.prefill[0], healthy=False)
        replies = [await c.chat(f"n{i}") for i in range(5)]
        assert {r.status for r in replies} == {200}
        assert len(c.regular[0].requests) == 5
        await c.prefill[0].start()
        await until_healthy(c, c.prefill[0], healthy=True)
        assert (await c.chat("pd again")).status == 200
        assert len(c.prefill[0].requests) == 2


async def test_a_request_moves_from_a_failing_pair_to_the_aggregated_worker() -> None:
    async with cluster(prefill=1, decode=1, regular=1) as c:
        c.prefill[0].script(Status(500))
        body = chat_with_images("http://x/a", stream=True)
        reply = await c.request("POST", CHAT, body)
        assert (reply.status, reply.events[-1]) == (200, "[DONE]")
        assert c.regular[0].outcomes == {"finished": 1}
        assert "bootstrap_room" not in c.regular[0].requests[0].body


async def test_a_lost_worker_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Row 76: in the log, in `/workers`, in the metrics, and it costs no request."""
    caplog.set_level(logging.INFO)
    async with cluster(prefill=2, decode=1) as c:
        lost = c.prefill[0]
        name = c.router_worker(lost).id
        assert (await c.chat()).status == 200
        await lost.kill()
        await until_healthy(c, lost, healthy=False)
        assert any(r.levelno == logging.WARNING and name in r.getMessage() for r in caplog.records)
        listed = {w["url"]: w for w in (await c.request("GET", "/workers")).json()["workers"]}
        assert [listed[w.url]["is_healthy"] for w in c.prefill] == [False, True]
        metrics = (await c.request("GET", "/metrics")).body.decode()
        gauges = [line for line in metrics.splitlines() if "healthy{" in line and name in line]
        assert [float(line.rsplit(" ", 1)[1]) for line in gauges] == [0.0]
        assert {(await c.chat(f"n{i}")).status for i in range(5)} == {200}


async def test_it_starts_with_some_or_all_workers_down() -> None:
    """Row 61."""
    async with cluster(prefill=2, decode=1, start=False) as c:
        await c.prefill[0].kill()
        await c.decode[0].kill()
        await c.start_router()
        assert (await c.chat()).status in (502, 503)
        assert (await c.request("GET", "/health")).status == 200
        assert (await c.request("GET", "/readiness")).status == 503
        await c.decode[0].start()
        await until_healthy(c, c.decode[0], healthy=True)
        assert {(await c.chat(f"n{i}")).status for i in range(5)} == {200}
