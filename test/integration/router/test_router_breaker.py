"""Whose fault it was: only the worker's own failures open its breaker, and it closes again.

Behaviour group 5. Rows 54 (sglang#25811, #25822, #26713, #13762, #9503; vllm-router#60: 4xx trips the breaker), 55
(sglang#39464: 429/503 are back-pressure).
"""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster, cluster
from fakes import FakeWorker, Hang, Status

from sgl_epd_router.breaker import BreakerState

FLAGS = ["--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "0.3", "--cb-success-threshold", "2"]


def state(c: Cluster, worker: FakeWorker) -> BreakerState:
    return c.router_worker(worker).breaker.state


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429, 503])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_not_the_workers_fault(status: int, leg: str) -> None:
    async with cluster(prefill=1, decode=1, flags=[*FLAGS, "--disable-retries"]) as c:
        worker = c.prefill[0] if leg == "prefill" else c.decode[0]
        worker.script(*(Status(status) for _ in range(10)))
        replies = await asyncio.gather(*(c.chat(f"n{i}") for i in range(10)))
        assert {r.status for r in replies} == {status}
        assert state(c, c.prefill[0]) is BreakerState.CLOSED
        assert state(c, c.decode[0]) is BreakerState.CLOSED
        assert (await c.chat("fine")).status == 200


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_failures_open_it_and_trials_close_it(leg: str) -> None:
    async with cluster(prefill=1, decode=1, flags=[*FLAGS, "--disable-retries"]) as c:
        worker, other = (c.prefill[0], c.decode[0]) if leg == "prefill" else (c.decode[0], c.prefill[0])
        worker.script(*(Status(500) for _ in range(3)))
        assert [(await c.chat(f"n{i}")).status for i in range(3)] == [500] * 3
        assert state(c, worker) is BreakerState.OPEN
        assert state(c, other) is BreakerState.CLOSED, "the aborted leg is no failure of its worker"
        refused = await c.chat("too early")
        assert refused.status == 503
        assert refused.header("retry-after")
        assert "circuit breaker" in refused.error["message"]
        assert len(worker.requests) == 3, "an open breaker keeps requests away"
        await asyncio.sleep(0.35)
        assert [(await c.chat(f"trial {i}")).status for i in range(2)] == [200, 200]
        assert state(c, worker) is BreakerState.CLOSED


async def test_failed_trial_opens_it_again() -> None:
    async with cluster(prefill=1, decode=1, flags=[*FLAGS, "--disable-retries"]) as c:
        worker = c.prefill[0]
        worker.script(*(Status(500) for _ in range(4)))
        for i in range(3):
            await c.chat(f"n{i}")
        await asyncio.sleep(0.35)
        assert (await c.chat("trial")).status == 500
        assert state(c, worker) is BreakerState.OPEN
        assert (await c.chat("refused")).status == 503


async def test_cancelled_trial_does_not_block_it_for_ever() -> None:
    """A trial whose client leaves says nothing; the next one must still be let through."""
    async with cluster(prefill=1, decode=1, flags=[*FLAGS, "--disable-retries"]) as c:
        worker = c.prefill[0]
        worker.script(*(Status(500) for _ in range(3)), Hang(), Hang())
        for i in range(3):
            await c.chat(f"n{i}")
        await asyncio.sleep(0.35)
        for _ in range(2):
            count = len(worker.requests)
            link = await c.link()
            await link.send("POST", "/v1/chat/completions", {"messages": []})
            await worker.arrived(count + 1)
            await link.close()
            await c.quiet()
        assert [(await c.chat(f"trial {i}")).status for i in range(2)] == [200, 200]
        assert state(c, worker) is BreakerState.CLOSED


async def test_open_breaker_sends_traffic_elsewhere() -> None:
    async with cluster(prefill=2, decode=1, flags=[*FLAGS, "--policy", "round_robin"]) as c:
        c.prefill[0].script(*(Status(500) for _ in range(50)))
        replies = [await c.chat(f"n{i}") for i in range(20)]
        assert {r.status for r in replies} == {200}
        assert state(c, c.prefill[0]) is BreakerState.OPEN
        assert len(c.prefill[0].requests) <= 5


async def test_disabled_breaker_never_opens() -> None:
    async with cluster(prefill=1, decode=1, flags=[*FLAGS, "--disable-retries", "--disable-circuit-breaker"]) as c:
        c.prefill[0].script(*(Status(500) for _ in range(10)))
        replies = await asyncio.gather(*(c.chat(f"n{i}") for i in range(10)))
        assert {r.status for r in replies} == {500}
        assert state(c, c.prefill[0]) is BreakerState.CLOSED
