"""Which worker gets a request: the policies as seen from outside, over real requests.

Rows 34 and 36 (affinity wanted), 58 (503s at high concurrency), 80 (sglang-omni#258: another image's KV); behaviour
group 9 (a global cursor).
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter

import pytest
from cluster import Cluster, chat, chat_with_images, cluster
from fakes import FakeWorker, Gate

CHAT = "/v1/chat/completions"


def image(seed: int, size: int = 3000) -> str:
    return "data:image/png;base64," + base64.b64encode(random.Random(seed).randbytes(size)).decode()


def counts(workers: list[FakeWorker]) -> list[int]:
    return [len(w.requests) for w in workers]


async def served_by(c: Cluster, body: dict[str, object]) -> FakeWorker:
    before = counts(c.prefill)
    assert (await c.request("POST", CHAT, body)).status == 200
    return next(w for w, n in zip(c.prefill, before, strict=True) if len(w.requests) > n)


async def test_round_robin_has_one_cursor_for_all_clients() -> None:
    async with cluster(prefill=3, decode=2, flags=["--policy", "round_robin", "--decode-policy", "round_robin"]) as c:
        await asyncio.gather(*(c.chat(f"n{i}") for i in range(12)))
        assert counts(c.prefill) == [4, 4, 4]
        assert counts(c.decode) == [6, 6]


@pytest.mark.parametrize(
    "policy", ["random", "power_of_two", "least_load", "cache_aware", "consistent_hashing", "bucket"]
)
async def test_every_policy_serves_and_uses_its_pool(policy: str) -> None:
    flags = ["--policy", policy, "--decode-policy", policy]
    async with cluster(prefill=3, decode=3, flags=flags) as c:
        replies = await asyncio.gather(*(c.chat(f"{i} {'long ' * (i % 7)}") for i in range(60)))
        assert {r.status for r in replies} == {200}
        assert sum(counts(c.prefill)) == sum(counts(c.decode)) == 60
        assert sum(n > 0 for n in counts(c.prefill)) >= 2


async def test_least_load_leaves_the_busy_one_alone() -> None:
    async with cluster(prefill=1, decode=3) as c:
        gates = [Gate() for _ in range(2)]
        for gate, worker in zip(gates, c.decode, strict=False):
            worker.script(gate, when=lambda leg: leg.body["user"] == "hold")
        held = [asyncio.create_task(c.chat(f"h{i}", user="hold")) for i in range(3)]
        async with asyncio.timeout(3):
            for gate in gates:
                await gate.struck.wait()
        assert counts(c.decode) == [1, 1, 1], "three at once go to three workers"
        await asyncio.gather(*(c.chat(f"n{i}", user="quick") for i in range(10)))
        await c_idle(c, 2)
        before = counts(c.decode)
        for i in range(6):
            await c.chat(f"m{i}", user="quick")
        after = counts(c.decode)
        assert after[2] - before[2] == 6, "all go to the one that has nothing to do"
        for gate in gates:
            gate.release()
        assert {(await h).status for h in held} == {200}


async def c_idle(c: Cluster, running: int) -> None:
    async with asyncio.timeout(3):
        while sum(len(w.live) for w in c.decode) != running:
            await asyncio.sleep(0.005)


async def test_same_prefix_same_worker() -> None:
    async with cluster(prefill=4, decode=1) as c:
        system = "You are a careful assistant. " * 30
        first = await served_by(c, chat(system + "one"))
        for i in range(10):
            assert await served_by(c, chat(system + f"question {i}")) is first
        others = {(await served_by(c, chat(f"{i} something else {i} " * 20))).name for i in range(12)}
        assert len(others) > 1, "affinity must not starve the rest"


async def test_same_image_same_worker_and_another_image_is_another_prefix() -> None:
    """Row 80: the image's content belongs to the key; the text around it alone would send them all to one worker."""
    async with cluster(prefill=4, decode=1) as c:

        def about(seed: int, question: str) -> dict[str, object]:
            body = chat_with_images(image(seed), text=question)
            body["messages"][0]["content"].reverse()  # the image first, as in a prefix that can be reused
            return body

        first = {seed: await served_by(c, about(seed, "what is this?")) for seed in range(12)}
        assert len({w.name for w in first.values()}) >= 3, "different images with the same text spread"
        for seed, worker in first.items():
            assert await served_by(c, about(seed, "another question")) is worker


async def test_consistent_hashing_by_session() -> None:
    """`x-smg-routing-key` keeps a session together, whatever it asks."""
    async with cluster(prefill=4, decode=1, flags=["--prefill-policy", "consistent_hashing"]) as c:
        used: dict[str, set[str]] = {}
        for key in (f"session-{i}" for i in range(8)):
            for n in range(4):
                before = counts(c.prefill)
                await c.request("POST", CHAT, chat(f"{key} {n}"), x_smg_routing_key=key)
                served = next(w for w, b in zip(c.prefill, before, strict=True) if len(w.requests) > b)
                used.setdefault(key, set()).add(served.name)
        assert all(len(names) == 1 for names in used.values())
        assert len(set.union(*used.values())) >= 3


async def test_affinity_survives_the_loss_of_another_worker() -> None:
    """Consistent hashing: only the lost worker's sessions move."""
    async with cluster(prefill=4, decode=1, flags=["--prefill-policy", "consistent_hashing"]) as c:

        async def place(key: str) -> str:
            before = counts(c.prefill)
            assert (await c.request("POST", CHAT, chat(key), x_smg_routing_key=key)).status == 200
            return next(w.name for w, b in zip(c.prefill, before, strict=True) if len(w.requests) > b)

        keys = [f"s{i}" for i in range(16)]
        before = {key: await place(key) for key in keys}
        gone = c.prefill[1]
        await c.request("DELETE", f"/workers/{c.router_worker(gone).id}")
        after = {key: await place(key) for key in keys}
        assert {k for k in keys if before[k] != after[k]} == {k for k in keys if before[k] == gone.name}


async def test_hundreds_at_once_all_succeed() -> None:
    """Row 58 (sglang#13894): 503s at high concurrency."""
    async with cluster(prefill=2, decode=2) as c:
        replies = await asyncio.gather(*(c.chat(f"n{i}", max_tokens=1) for i in range(500)))
        assert Counter(r.status for r in replies) == {200: 500}
        assert len({r.json()["choices"][0]["message"]["content"] for r in replies}) == 500
