"""Ten thousand requests with random faults, after which nothing is left: no counter, task, socket, descriptor.

The faults follow from the seed; what the client must see follows from the fault, so that a lost, mixed-up or repeated
answer is noticed in every single request.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from cluster import Cluster, chat, cluster
from fakes import (
    AbortReason,
    Close,
    Fault,
    Garbage,
    HalfClose,
    Hang,
    Reset,
    Status,
    WrongLength,
    answers,
)
from http_client import Link

REQUESTS = int(os.environ.get("SGL_EPD_SOAK_REQUESTS", "10000"))
CLIENTS = 40
CHAT = "/v1/chat/completions"
BEFORE: list[Callable[[], Fault]] = [
    Reset,
    Close,
    HalfClose,
    Garbage,
    WrongLength,
    lambda: Status(500),
    lambda: Status(503),
    lambda: Status(429),
    lambda: AbortReason(500),
]
LATER: list[Callable[[], Fault]] = [
    lambda: Reset(after=2),
    lambda: Close(after=1),
    lambda: HalfClose(after=3),
    lambda: Garbage(b"zz\r\n", after=2),
    lambda: AbortReason(500, after=2),
]
REFUSALS: list[Callable[[], Fault]] = [lambda: Status(400), lambda: Status(422)]
FLAGS = [
    *("--cb-failure-threshold", "1000000", "--health-failure-threshold", "1000000"),
    *("--retry-max-retries", "8", "--retry-budget-ratio", "1", "--retry-initial-backoff-ms", "1"),
    *("--prefill-timeout-secs", "6", "--first-token-timeout-secs", "6", "--request-timeout-secs", "50"),
]


class Plan:
    """What shall happen to each request, decided in advance."""

    def __init__(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        self.kinds = rng.choices(
            ["plain", "before", "later", "refused", "hang", "leave"], [70, 16.4, 5, 4, 0.1, 4.5], k=count
        )
        self.stream = [rng.random() < 0.5 for _ in range(count)]
        self.leg = [rng.choice(["prefill", "decode"]) for _ in range(count)]
        self.pick = [rng.random() for _ in range(count)]
        self.left = set(range(count))

    def fault(self, number: int) -> Fault | None:
        kind, pick = self.kinds[number], self.pick[number]
        pool = {"before": BEFORE, "later": LATER, "refused": REFUSALS, "hang": [Hang]}.get(kind)
        return pool[int(pick * len(pool))]() if pool else None

    def leg_of(self, number: int) -> str:
        """After the first token it is the decode worker that fails."""
        return "decode" if self.kinds[number] == "later" else self.leg[number]

    def streams(self, number: int) -> bool:
        return self.kinds[number] == "later" or self.stream[number]


def inject(c: Cluster, plan: Plan) -> None:
    """Each fault strikes the first leg of its kind that sees the request, and only that one."""

    def attach(worker: Any) -> None:
        original = worker._take_fault

        def take(leg: Any) -> Fault | None:
            number = leg.body.get("seed")
            if number not in plan.left or plan.leg_of(number) != worker.role:
                return original(leg)
            plan.left.discard(number)
            return plan.fault(number)

        worker._take_fault = take

    for worker in c.workers:
        attach(worker)


async def one(c: Cluster, plan: Plan, number: int, rng: random.Random) -> str:
    """Send request `number`, check the outcome, say what it was."""
    body = chat(f"request {number}", seed=number, stream=plan.streams(number), max_tokens=rng.randint(3, 6))
    async with await Link.open(c.url) as link:
        await link.send("POST", CHAT, body)
        kind = plan.kinds[number]
        if kind == "leave":
            await asyncio.sleep(rng.random() * 0.02)
            if rng.random() < 0.5:
                link.reset()
            return "left"
        async with asyncio.timeout(60):
            reply = await link.reply()
    if kind == "refused":
        assert reply.status in (400, 422), (number, reply.status)
        return "refused"
    assert reply.status == 200, (number, kind, plan.leg_of(number), reply.status, reply.body[:300])
    whole = answers.text(body)
    if not plan.streams(number):
        assert reply.json()["choices"][0]["message"]["content"] == whole, number
        return "answered"
    if kind == "later":
        assert reply.events[-1] != "[DONE]", number
        assert '"error"' in reply.events[-1], number
        return "broken"
    assert reply.events[-1] == "[DONE]", number
    assert answers.digest(body) in reply.events[1], number
    return "answered"


async def drive(c: Cluster, plan: Plan, count: int, seed: int) -> Counter[str]:
    """`CLIENTS` at a time."""
    numbers = iter(range(count))
    outcomes: Counter[str] = Counter()

    async def client(which: int) -> None:
        rng = random.Random(seed * 1000 + which)
        for number in numbers:
            outcomes[await one(c, plan, number, rng)] += 1

    async with asyncio.TaskGroup() as group:
        for which in range(CLIENTS):
            group.create_task(client(which))
    return outcomes


@pytest.mark.timeout(240)
async def test_soak() -> None:
    plan = Plan(20260101, REQUESTS)
    async with cluster(prefill=3, decode=3, flags=FLAGS) as c:
        inject(c, plan)
        outcomes = await drive(c, plan, REQUESTS, 1)
        assert sum(outcomes.values()) == REQUESTS
        expected = Counter(plan.kinds)
        assert outcomes["refused"] == expected["refused"]
        assert outcomes["broken"] == expected["later"]
        assert outcomes["left"] == expected["leave"]
        await c.quiet(timeout_s=10)
        for worker in c.workers:
            worker.requests.clear()
        c.fabric.entries.clear()
        gc.collect()
        await everything_at_rest(c)


async def everything_at_rest(c: Cluster) -> None:
    """Counters that have nothing to do with `cluster`'s own checks."""
    context = c.app.context
    assert len(context.requests) == 0
    assert (context.gate.queue.running, context.gate.queue.waiting) == (0, 0)
    loads = (await c.request("GET", "/get_loads")).json()["workers"]
    assert {entry["load"] for entry in loads} == {0}
    # Idle connections to workers are given up; what remains is what health checks and load polls use by turns.
    async with asyncio.timeout(10):
        while max(w.open_connections for w in c.workers) > 3:
            await asyncio.sleep(0.05)
