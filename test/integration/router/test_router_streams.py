"""Streams: the upstream's status is known before 200 is sent; a later failure is an error event and never `[DONE]`.

Behaviour group 4. Rows 21 (vllm#54140: status turned into 500, or 200 before decode is validated), 5 (failed encode
became HTTP 200), 50 (garbage after an aborted prefill).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from cluster import chat, cluster
from fakes import AbortReason, Close, Die, Fault, Garbage, Gate, HalfClose, Hang, Reset, answers
from http_client import Link

CHAT = "/v1/chat/completions"
BROKEN: dict[str, Callable[[], Fault]] = {
    "reset": lambda: Reset(after=3),
    "closed": lambda: Close(after=3),
    "half-closed": lambda: HalfClose(after=3),
    "killed": lambda: Die(after=3),
    "garbage": lambda: Garbage(b"zz not a chunk size\r\n", after=3),
    "half an event": lambda: Garbage(b'10\r\ndata: {"choices"\r\nXX', after=3),
    "right after the head": lambda: Reset(after=0),
}


def expected_events(body: dict[str, object], rid: str) -> list[str]:
    return [e.decode()[6:-2] for e in answers.events(CHAT, body, [rid])]


@pytest.mark.parametrize("fault", list(BROKEN.values())[:6], ids=list(BROKEN)[:6])
async def test_broken_stream_ends_with_an_error_event(fault: Callable[[], Fault]) -> None:
    async with cluster(prefill=1, decode=1) as c:
        c.decode[0].script(fault())
        body = chat("break", stream=True, max_tokens=16)
        async with asyncio.timeout(5):
            reply = await c.request("POST", CHAT, body)
        assert reply.status == 200
        whole = expected_events(body, c.decode[0].requests[0].rids[0])
        assert reply.events[:3] == whole[:3]
        assert len(reply.events) == 4
        last = json.loads(reply.events[3])
        assert last["error"]["code"] == 502
        assert "[DONE]" not in reply.events


async def test_engine_error_in_the_stream_is_passed_without_done() -> None:
    """SGLang itself sends `[DONE]` after an error event; clients would take half an answer for a whole one."""
    async with cluster(prefill=1, decode=1) as c:
        c.decode[0].script(AbortReason(500, "out of memory", after=3))
        reply = await c.chat("break", stream=True, max_tokens=16)
        assert json.loads(reply.events[-1])["error"]["message"] == "out of memory"
        assert len(reply.events) == 4
        assert "[DONE]" not in reply.events


async def test_error_as_the_first_event_becomes_a_status() -> None:
    """Row 21: SGLang answers 200 and puts the error into the first event; the client gets the status instead."""
    async with cluster(prefill=1, decode=1, flags=["--disable-retries"]) as c:
        c.decode[0].script(AbortReason(503, "KV cache full"))
        reply = await c.chat(stream=True)
        assert reply.status == 503
        assert reply.error["message"] == "KV cache full"


async def test_head_waits_for_the_first_event() -> None:
    """No 200 before decode has produced something."""
    async with cluster(prefill=1, decode=1) as c:
        gate = Gate(after=0)
        c.decode[0].script(gate)
        async with await c.link() as link:
            await link.send("POST", CHAT, chat(stream=True))
            await gate.struck.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await link.read_head()
            gate.release()
            assert await link.read_head() == 200
            await link.read_body()


async def test_events_are_passed_as_they_come() -> None:
    """Each event reaches the client before the next one exists."""
    async with cluster(prefill=1, decode=1) as c:
        gates = [Gate(after=k) for k in (1, 3)]
        body = chat("slowly", stream=True, max_tokens=4)
        for gate in gates:
            c.decode[0].script(gate)
            async with await c.link() as link:
                await link.send("POST", CHAT, body)
                await gate.struck.wait()
                async with asyncio.timeout(2):
                    await link.read_head()
                    got = b""
                    while got.count(b"\n\n") < gate.after:
                        got += await link.read_chunk() or b""
                gate.release()
                await link.read_body()


async def test_silent_stream_ends_in_time() -> None:
    async with cluster(prefill=1, decode=1, flags=["--stream-idle-timeout-secs", "0.3"]) as c:
        c.decode[0].script(Hang(after=2))
        async with asyncio.timeout(5):
            reply = await c.chat("hang", stream=True)
        assert json.loads(reply.events[-1])["error"]["code"] == 504
        assert "[DONE]" not in reply.events
        assert await asyncio.wait_for(c.decode[0].requests[0].ended.wait(), 2)
        assert c.decode[0].requests[0].outcome == "aborted"


async def test_prefill_failing_after_the_first_token_does_not_end_the_stream() -> None:
    """Prefill has done its work when decode sends tokens; what its connection does then is its own affair."""
    async with cluster(prefill=1, decode=1) as c:
        gate = Gate(after=2)
        c.prefill[0].script(Hang(after=1))
        c.decode[0].script(gate)
        async with await c.link() as link:
            await link.send("POST", CHAT, chat(stream=True))
            assert await link.read_head() == 200
            await c.prefill[0].kill()
            gate.release()
            body = await link.read_body()
        assert body.endswith(b"data: [DONE]\n\n")


async def test_slow_reader_slows_the_worker_not_the_memory() -> None:
    """A client that does not read holds its own stream back: what waits in the router is bounded."""
    async with cluster(prefill=1, decode=1) as c:
        # The model's name is in every event: together they are far more than all socket buffers hold.
        body = chat("flood", stream=True, max_tokens=256, model="m" * 500_000)
        async with await c.link() as slow:
            await slow.send("POST", CHAT, body)
            leg = await c.decode[0].arrived()
            sent = -1
            while sent != leg.events_sent or not sent:
                sent = leg.events_sent
                await asyncio.sleep(0.3)
            assert sent < 200, "the worker was never held back"
            reply = await slow.reply()
        assert reply.events[-1] == "[DONE]"


async def test_many_streams_at_once_stay_apart() -> None:
    async with cluster(prefill=2, decode=2) as c:
        bodies = [chat(f"stream {i}", stream=True, max_tokens=1 + i % 9) for i in range(60)]
        replies = await asyncio.gather(*(c.request("POST", CHAT, body) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            tokens = [json.loads(e)["choices"][0]["delta"]["content"] for e in reply.events[1:-2]]
            assert tokens == answers.tokens(body)


async def test_generate_and_completions_stream_too() -> None:
    async with cluster(prefill=1, decode=1) as c:
        for path, body in (
            ("/generate", {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 3}}),
            ("/v1/completions", {"model": "m", "prompt": "a", "stream": True, "max_tokens": 3}),
        ):
            reply = await c.request("POST", path, body)
            rids = c.decode[0].requests[-1].rids
            assert reply.body == b"".join(answers.events(path, body, rids)) + b"data: [DONE]\n\n"


async def test_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async with cluster(prefill=1, decode=1) as c, await Link.open(c.url) as link:
        data = json.dumps(chat(stream=True)).encode()
        await link.send_raw(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        reply = await link.reply()
        assert reply.header("transfer-encoding") is None
        assert reply.events[-1] == "[DONE]"
