"""Before the first token a request moves on to other workers, with a new id and a new room.

Rows 31 (no failover), 46 (dynamo#11913: one crash takes all down), 72 (workers healthy but chat gives 502).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from cluster import chat, cluster
from fakes import AbortReason, Close, Die, Fault, Garbage, Hang, Reset, Status, WrongLength, answers

CHAT = "/v1/chat/completions"
FAULTS: dict[str, Callable[[], Fault]] = {
    "reset": Reset,
    "closed": Close,
    "killed": Die,
    "garbage": Garbage,
    "cut short": WrongLength,
    "500": lambda: Status(500),
    "429": lambda: Status(429),
    "503": lambda: Status(503),
    "engine abort": lambda: AbortReason(500),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("failing", ["prefill", "decode"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_failed_leg_is_retried_elsewhere(failing: str, stream: bool, fault: Callable[[], Fault]) -> None:
    async with cluster(prefill=2, decode=2, flags=["--policy", "round_robin"]) as c:
        pool = c.prefill if failing == "prefill" else c.decode
        broken = fault()
        for worker in pool:
            # Whoever comes first fails; the other worker is fine.
            worker.script(broken, when=lambda _: not any(leg.fault for w in pool for leg in w.requests))
        body = chat("try again", stream=stream)
        reply = await c.request("POST", CHAT, body)
        assert reply.status == 200, reply.body
        assert answers.digest(body) in reply.body.decode()
        if stream:
            assert reply.events[-1] == "[DONE]"
        assert sum(len(w.requests) for w in pool) == 2
        assert {len(w.requests) for w in pool} == {1}, "the second try goes to the other worker"
        assert sum(w.outcomes.get("finished", 0) for w in c.prefill) == 1
        assert sum(w.outcomes.get("finished", 0) for w in c.decode) == 1


@pytest.mark.parametrize("failing", ["prefill", "decode"])
async def test_hanging_worker_is_left_for_another(failing: str) -> None:
    flags = ["--prefill-timeout-secs", "0.3", "--first-token-timeout-secs", "0.5"]
    async with cluster(prefill=2, decode=2, flags=flags) as c:
        pool = c.prefill if failing == "prefill" else c.decode
        hang = Hang()
        for worker in pool:
            worker.script(hang, when=lambda _: not hang.struck.is_set())
        reply = await c.chat("go on", stream=True)
        assert reply.status == 200
        assert reply.events[-1] == "[DONE]"


async def test_dead_worker_costs_no_request() -> None:
    """A worker that was killed and not yet noticed: every request still succeeds."""
    async with cluster(prefill=2, decode=2, flags=["--health-check-interval-secs", "60"]) as c:
        assert (await c.chat()).status == 200
        await c.prefill[0].kill()
        await c.decode[1].kill()
        replies = await asyncio.gather(*(c.chat(f"n{i}") for i in range(20)))
        assert [r.status for r in replies] == [200] * 20


async def test_retries_are_bounded() -> None:
    async with cluster(prefill=3, decode=1, flags=["--retry-max-retries", "1"]) as c:
        for worker in c.prefill:
            worker.script(*(Status(500, f"from {worker.name}") for _ in range(3)))
        reply = await c.chat()
        assert reply.status == 500
        assert reply.error["message"].startswith("from prefill-")
        assert sum(len(w.requests) for w in c.prefill) == 2


async def test_all_workers_busy_passes_retry_after() -> None:
    """Row 55: back-pressure of the last worker reaches the client with its Retry-After, and at once."""
    async with cluster(prefill=1, decode=1) as c:
        c.prefill[0].script(Status(429, "queue full", headers={"retry-after": "7"}))
        async with asyncio.timeout(2):
            reply = await c.chat()
        assert (reply.status, reply.header("retry-after")) == (429, "7")


async def test_retry_after_of_one_worker_does_not_delay_another() -> None:
    async with cluster(prefill=2, decode=1) as c:
        busy = Status(429, "queue full", headers={"retry-after": "7"})
        for worker in c.prefill:
            worker.script(busy, when=lambda _: not any(leg.fault for w in c.prefill for leg in w.requests))
        async with asyncio.timeout(2):
            reply = await c.chat()
        assert reply.status == 200


async def test_killer_request_does_not_kill_them_all() -> None:
    """A request whose workers die is not handed to a third."""
    async with cluster(prefill=4, decode=1) as c:
        for worker in c.prefill:
            worker.script(Die())
        reply = await c.chat()
        assert reply.status == 502
        assert sum(w.server.listening for w in c.prefill) >= 2


async def test_retry_budget_stops_a_storm() -> None:
    """With everything failing, retries stay a small share of the traffic."""
    flags = ["--retry-budget-ratio", "0.1", "--retry-budget-per-sec", "0", "--cb-failure-threshold", "100000"]
    async with cluster(prefill=2, decode=1, flags=flags) as c:
        for worker in c.prefill:
            worker.script(*(Status(500) for _ in range(400)))
        replies = await asyncio.gather(*(c.chat(f"n{i}") for i in range(100)))
        assert {r.status for r in replies} == {500}
        attempts = sum(len(w.requests) for w in c.prefill)
        assert 100 <= attempts <= 125


async def test_nothing_is_retried_after_the_first_token() -> None:
    async with cluster(prefill=2, decode=2) as c:
        for worker in c.decode:
            worker.script(Reset(after=2))
        reply = await c.chat(stream=True)
        assert reply.status == 200
        assert sum(len(w.requests) for w in c.decode) == 1
