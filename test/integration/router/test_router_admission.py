"""How many requests run, how many wait, and who is told to come back later.

Flags `--max-concurrent-requests`, `--queue-size`, `--queue-timeout-secs`, priorities, `--rate-limit-tokens-per-second`.
Row 7 (sglang#37280: unbounded queues).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cluster import Cluster, chat, cluster
from fakes import Gate
from http_client import Reply

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def one_running(*flags: str) -> AsyncIterator[tuple[Cluster, Gate]]:
    """A router that runs one request at a time, and one request that runs until the gate is released."""
    async with cluster(regular=1, flags=["--max-concurrent-requests", "1", *flags]) as c:
        gate = Gate()
        c.regular[0].script(gate)
        held = asyncio.create_task(c.chat("held"))
        await gate.struck.wait()
        yield c, gate
        gate.release()
        assert (await held).status == 200


async def waits(c: Cluster, count: int) -> None:
    async with asyncio.timeout(3):
        while c.app.context.gate.queue.waiting != count:
            await asyncio.sleep(0.002)


async def test_the_rest_waits_in_order() -> None:
    async with one_running() as (c, gate):
        tasks: list[asyncio.Task[Reply]] = []
        for i in range(5):
            tasks.append(asyncio.create_task(c.chat(f"n{i}")))
            await waits(c, i + 1)
        assert len(c.regular[0].requests) == 1
        gate.release()
        assert {(await t).status for t in tasks} == {200}
        assert [leg.body["messages"][0]["content"] for leg in c.regular[0].requests[1:]] == [f"n{i}" for i in range(5)]


async def test_full_queue_gets_429_at_once() -> None:
    async with one_running("--queue-size", "2") as (c, gate):
        tasks = [asyncio.create_task(c.chat(f"n{i}")) for i in range(2)]
        await waits(c, 2)
        async with asyncio.timeout(1):
            refused = await c.chat("too many")
        assert refused.status == 429
        assert int(refused.header("retry-after") or 0) >= 1
        assert refused.error["type"] == "RateLimitError"
        gate.release()
        assert {(await t).status for t in tasks} == {200}


async def test_queue_of_zero_refuses_at_once() -> None:
    async with one_running("--queue-size", "0") as (c, _):
        assert (await c.chat()).status == 429


async def test_waiting_too_long_gets_408() -> None:
    async with one_running("--queue-timeout-secs", "0.2") as (c, _):
        async with asyncio.timeout(2):
            late = await c.chat()
        assert late.status == 408
        assert late.header("retry-after")
        assert c.app.context.gate.queue.waiting == 0


async def test_urgent_requests_overtake() -> None:
    async with one_running() as (c, gate):
        tasks = []
        for i, priority in enumerate([0, 0, 5, -3, 9]):
            tasks.append(asyncio.create_task(c.chat(f"p{priority}-{i}", priority=priority)))
            await waits(c, i + 1)
        header = asyncio.create_task(c.request("POST", CHAT, chat("header"), x_override_priority="20"))
        await waits(c, 6)
        gate.release()
        await asyncio.gather(*tasks, header)
        order = [leg.body["messages"][0]["content"] for leg in c.regular[0].requests[1:]]
        assert order == ["header", "p9-4", "p5-2", "p0-0", "p0-1", "p-3-3"]


async def test_when_full_the_least_urgent_gives_way() -> None:
    async with one_running("--queue-size", "1") as (c, gate):
        low = asyncio.create_task(c.chat("low", priority=-5))
        await waits(c, 1)
        high = asyncio.create_task(c.chat("high", priority=5))
        assert (await low).status == 429
        gate.release()
        assert (await high).status == 200


async def test_control_and_health_never_wait() -> None:
    async with one_running("--queue-size", "0") as (c, _):
        for path in ("/health", "/readiness", "/metrics", "/workers", "/v1/models"):
            async with asyncio.timeout(2):
                assert (await c.request("GET", path)).status == 200, path


async def test_rate_limit_is_per_key() -> None:
    flags = ["--rate-limit-tokens-per-second", "0.5", "--rate-limit-burst", "3", "--api-key", "sk-a", "sk-b"]
    async with cluster(regular=1, flags=flags) as c:
        statuses = {}
        for key in ("sk-a", "sk-b"):
            replies = [await c.request("POST", CHAT, chat(f"{i}"), authorization=f"Bearer {key}") for i in range(5)]
            statuses[key] = [r.status for r in replies]
            assert 1 <= int(replies[-1].header("retry-after") or 0) <= 3
        assert statuses == {"sk-a": [200, 200, 200, 429, 429], "sk-b": [200, 200, 200, 429, 429]}


@pytest.mark.parametrize("limit", [1, 3, 8])
async def test_never_more_than_the_limit(limit: int) -> None:
    async with cluster(regular=1, flags=["--max-concurrent-requests", str(limit), "--queue-size", "1000"]) as c:
        gates = [Gate() for _ in range(80)]
        c.regular[0].script(*gates)
        tasks = [asyncio.create_task(c.chat(f"n{i}")) for i in range(80)]
        await waits(c, 80 - limit)
        for done, gate in enumerate(gates):
            await gate.struck.wait()
            assert len(c.regular[0].requests) <= done + limit
            assert len(c.regular[0].live) <= limit
            gate.release()
        assert {(await t).status for t in tasks} == {200}
