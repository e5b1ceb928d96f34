"""`n` samples through prefill and decode: one generation for each, one answer for the client, all or nothing.

Row 65: a stock worker would give all samples of one request the same room.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from cluster import Cluster, chat, cluster
from fakes import AbortReason, Gate, Hang, Reset, Status, answers

CHAT = "/v1/chat/completions"
DONE = "[DONE]"


def pairs(c: Cluster) -> list[tuple[Any, Any]]:
    """Prefill and decode leg of each sample, matched by room."""
    by_room = {leg.rooms[0]: leg for w in c.decode for leg in w.requests}
    return [(leg, by_room[leg.rooms[0]]) for w in c.prefill for leg in w.requests]


async def test_each_sample_is_asked_for_alone() -> None:
    async with cluster(prefill=2, decode=2) as c:
        reply = await c.chat(n=3, temperature=0.5)
        assert reply.status == 200
        legs = pairs(c)
        assert len(legs) == 3
        assert len({p.rooms[0][2] for p, _ in legs}) == 3
        assert len({p.rid for p, _ in legs}) == 3
        for p, d in legs:
            assert "n" not in p.body
            assert p.body["temperature"] == 0.5
            assert p.rid == d.rid
        answer = reply.json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert (
            answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
        )


async def test_the_others_wait_for_the_first_ones_prefill() -> None:
    """They then find the prompt in the prefill worker's cache, instead of computing it n times at once."""
    async with cluster(prefill=1, decode=1) as c:
        gate = c.prefill[0].script(Gate())
        assert isinstance(gate, Gate)
        asking = asyncio.create_task(c.chat(n=4))
        await c.prefill[0].arrived()
        await asyncio.sleep(0.1)
        assert len(c.prefill[0].requests) == 1
        gate.release()
        assert len((await asking).json()["choices"]) == 4
        assert len(c.prefill[0].requests) == 4


async def test_streams_are_merged_into_one() -> None:
    async with cluster(prefill=1, decode=1) as c:
        options = {"include_usage": True}
        reply = await c.chat(n=3, stream=True, max_tokens=5, stream_options=options)
        assert reply.events[-1] == DONE
        assert reply.events.count(DONE) == 1
        events = [json.loads(event) for event in reply.events[:-1]]
        assert len({event["id"] for event in events}) == 1
        assert {choice["index"] for event in events for choice in event["choices"]} == {0, 1, 2}
        usages = [event["usage"] for event in events if event.get("usage")]
        assert len(usages) == 1
        assert usages[0]["completion_tokens"] == 15
        texts = ["", "", ""]
        for event in events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == [answers.text(p.body) for p, _ in pairs(c)]


async def test_clients_ids_are_kept() -> None:
    async with cluster(prefill=1, decode=1) as c:
        assert (await c.chat(n=2, rid="mine")).json()["id"] == "mine"
        reply = await c.chat(n=2, rid="mine", stream=True)
        assert {json.loads(event)["id"] for event in reply.events if event != DONE} == {"mine"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_one_refused_sample_ends_all(stream: bool) -> None:
    async with cluster(prefill=1, decode=1) as c:
        # The first runs on (a stream) or has ended when the second is refused.
        c.decode[0].script(Hang(after=1), Status(400, "not this one"), Hang(after=1))
        reply = await c.chat(n=3, stream=stream)
        assert (reply.status, reply.error["message"]) == (400, "not this one")
        await c.quiet()
        assert "running" not in c.decode[0].outcomes
        assert c.decode[0].outcomes["failed"] == 1
        assert not stream or c.decode[0].outcomes["aborted"] == 2


async def test_a_lost_sample_is_tried_again_alone() -> None:
    async with cluster(prefill=1, decode=2) as c:
        c.decode[0].script(Reset())
        reply = await c.chat(n=3)
        assert reply.status == 200
        assert len(c.prefill[0].requests) == 4
        assert sorted(c.prefill[0].outcomes) in (["aborted", "finished"], ["finished"])


@pytest.mark.parametrize("fault", [Reset(after=2), AbortReason(after=2)], ids=["reset", "error event"])
async def test_a_sample_that_breaks_in_the_middle_breaks_the_stream(fault: Any) -> None:
    """Group 4: an error event, and no [DONE]."""
    async with cluster(prefill=1, decode=1) as c:
        c.decode[0].script(Hang(after=2), fault)
        reply = await c.chat(n=2, stream=True, max_tokens=20)
        assert reply.status == 200
        assert DONE not in reply.events
        assert "error" in json.loads(reply.events[-1])
        assert sum("error" in json.loads(event) for event in reply.events) == 1
        await c.quiet()
        assert c.decode[0].outcomes == {"aborted": 1, "failed": 1}


async def test_a_client_that_leaves_ends_all_samples() -> None:
    async with cluster(prefill=1, decode=2) as c:
        for worker in c.decode:
            worker.script(*(Hang(after=1) for _ in range(3)))
        link = await c.link()
        await link.send("POST", CHAT, chat(n=3, stream=True))
        await link.read_head()
        await link.close()
        await c.quiet()
        outcomes = [leg.outcome for w in c.decode for leg in w.requests]
        assert outcomes == ["aborted"] * 3


async def test_abort_by_the_id_of_the_merged_answer() -> None:
    async with cluster(prefill=1, decode=1) as c:
        c.decode[0].script(*(Hang(after=3) for _ in range(2)))
        link = await c.link()
        await link.send("POST", CHAT, chat(n=2, stream=True, max_tokens=50))
        await link.read_head()
        chunk = await link.read_chunk()
        assert chunk is not None
        answer_id = json.loads(chunk.split(b"\n")[0].removeprefix(b"data: "))["id"]
        assert (await c.request("POST", "/abort_request", {"rid": answer_id})).json()["aborted"] == 2
        rest = b"".join([part async for part in _chunks(link)])
        assert rest.endswith(b"data: [DONE]\n\n")
        assert c.decode[0].outcomes == {"aborted": 2}
        await link.close()


async def _chunks(link: Any) -> Any:
    while (chunk := await link.read_chunk()) is not None:
        yield chunk


async def test_too_many_samples() -> None:
    async with cluster(prefill=1, decode=1) as c:
        reply = await c.chat(n=129)
        assert (reply.status, reply.error["param"]) == (400, "n")
        assert not c.prefill[0].requests


async def test_one_aggregated_worker_takes_all_samples_in_one_request() -> None:
    async with cluster(regular=1) as c:
        assert len((await c.chat(n=3)).json()["choices"]) == 3
        (leg,) = c.regular[0].requests
        assert leg.body["n"] == 3
