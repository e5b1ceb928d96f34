"""The client goes away: all its legs end at once, and every counter is back at zero (checked by `cluster` each time).

Behaviour group 3. Rows 41 (dynamo#13691: prefill goes on), 51 (sglang#8177, #9817, #19524, #35255, #37833), 52
(smg#2136).
"""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster, chat, cluster
from fakes import Gate, Hang
from fakes.worker import Received

CHAT = "/v1/chat/completions"


async def both_aborted(c: Cluster, *legs: Received) -> None:
    async with asyncio.timeout(3):
        for leg in legs:
            await leg.ended.wait()
    assert [leg.outcome for leg in legs] == ["aborted"] * len(legs)
    for leg in legs:
        assert any(leg.rid in w.aborts for w in c.workers)


@pytest.mark.parametrize("way", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_before_the_first_byte(stream: bool, way: str) -> None:
    async with cluster(prefill=1, decode=1) as c:
        c.prefill[0].script(Hang())
        link = await c.link()
        await link.send("POST", CHAT, chat(stream=stream))
        legs = await c.prefill[0].arrived(), await c.decode[0].arrived()
        if way == "reset":
            link.reset()
        elif way == "half":
            # Half-closed and never read again, as by a client that was killed behind a proxy.
            link.writer.write_eof()
        else:
            await link.close()
        await both_aborted(c, *legs)
        if way != "reset":
            await link.close()


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_in_the_middle_of_a_stream(way: str) -> None:
    async with cluster(prefill=1, decode=1) as c:
        c.decode[0].script(Hang(after=3))
        link = await c.link()
        await link.send("POST", CHAT, chat(stream=True, max_tokens=50))
        await link.read_head()
        await link.read_chunk()
        if way == "reset":
            link.reset()
        else:
            await link.close()
        await both_aborted(c, c.decode[0].requests[0])


async def test_while_a_retry_waits() -> None:
    """Gone during the pause between two attempts: no second attempt is made."""
    from fakes import Status

    flags = ["--retry-initial-backoff-ms", "400", "--retry-max-backoff-ms", "400", "--retry-jitter-factor", "0"]
    async with cluster(prefill=2, decode=1, flags=flags) as c:
        for worker in c.prefill:
            worker.script(Status(503))
        link = await c.link()
        await link.send("POST", CHAT, chat())
        async with asyncio.timeout(3):
            while not any(w.requests for w in c.prefill):
                await asyncio.sleep(0.005)
            await c.decode[0].requests[0].ended.wait()
        await link.close()
        await c.quiet()
        await asyncio.sleep(0.6)
        assert sum(len(w.requests) for w in c.prefill) == 1


async def test_while_the_body_is_still_coming() -> None:
    async with cluster(prefill=1, decode=1) as c:
        link = await c.link()
        await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        await link.close()
        await c.quiet()
        assert not c.prefill[0].requests
        assert not c.decode[0].requests


async def test_while_waiting_in_the_queue() -> None:
    async with cluster(prefill=1, decode=1, flags=["--max-concurrent-requests", "1"]) as c:
        gate = Gate()
        c.decode[0].script(gate)
        first = asyncio.create_task(c.chat("first"))
        await gate.struck.wait()
        link = await c.link()
        await link.send("POST", CHAT, chat("second"))
        await waiting(c, 1)
        await link.close()
        await waiting(c, 0)
        gate.release()
        assert (await first).status == 200
        assert len(c.decode[0].requests) == 1


async def waiting(c: Cluster, count: int) -> None:
    async with asyncio.timeout(3):
        while c.app.context.gate.queue.waiting != count:
            await asyncio.sleep(0.005)


async def test_one_of_n_samples_hangs_when_the_client_leaves() -> None:
    """`n` samples are requests of their own: each of them is aborted."""
    async with cluster(prefill=1, decode=2) as c:
        for worker in c.decode:
            worker.script(Hang(), Hang(), Hang())
        link = await c.link()
        await link.send("POST", CHAT, chat(n=3))
        async with asyncio.timeout(3):
            while sum(len(w.requests) for w in c.decode) < 1:
                await asyncio.sleep(0.005)
        await link.close()
        await c.quiet()
        for worker in c.decode:
            assert set(worker.outcomes) <= {"aborted"}


async def test_pipelined_request_is_served_after_the_first() -> None:
    """Bytes that come while a request runs are the next request, not a goodbye."""
    async with cluster(prefill=1, decode=1) as c, await c.link() as link:
        gate = Gate()
        c.decode[0].script(gate)
        await link.send("POST", CHAT, chat("one"))
        await gate.struck.wait()
        await link.send("POST", CHAT, chat("two"))
        gate.release()
        replies = [await link.reply(), await link.reply()]
        assert [r.status for r in replies] == [200, 200]
        assert [leg.body["messages"][0]["content"] for leg in c.decode[0].requests] == ["one", "two"]


async def test_a_flood_of_leavers_leaves_nothing() -> None:
    async with cluster(prefill=2, decode=2) as c:
        links = [await c.link() for _ in range(100)]
        for i, link in enumerate(links):
            await link.send("POST", CHAT, chat(f"n{i}", stream=bool(i % 2), max_tokens=200))
        for i, link in enumerate(links):
            if i % 3:
                link.reset()
            else:
                await link.close()
        await c.quiet()
        assert (await c.chat("still there?")).status == 200
