"""When one leg fails: the client gets a proper status soon, and the other leg is aborted at once, not after minutes.

Behaviour groups 1 and 2 (every request ends; the other leg is aborted now). Rows 4, 5, 6, 26, 47 (aibrix#2746),
48 (sglang#9726, #29017, #24159), 50 (sglang#30233, #34208), 31 (HTTP 200 with an empty body).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from cluster import chat, cluster
from fakes import AbortReason, Close, Die, Fault, Garbage, HalfClose, Hang, Reset, Status, WrongLength
from fakes.worker import FakeWorker, Received

SOON_S = 3.0
CHAT = "/v1/chat/completions"

# name, fault, status that the client gets when nobody takes over
LOST: list[tuple[str, Callable[[], Fault], int]] = [
    ("reset", Reset, 502),
    ("closed", Close, 502),
    ("half-closed", HalfClose, 502),
    ("killed", Die, 502),
    ("garbage", Garbage, 502),
    ("cut short", WrongLength, 502),
    ("status 500", lambda: Status(500), 500),
    ("not json", lambda: Status(500, body=b"<html>oops</html>", type_="text/html"), 500),
    ("engine abort", lambda: AbortReason(500), 500),
    ("no memory", lambda: AbortReason(503, "out of memory"), 503),
]
REFUSED: list[tuple[str, Callable[[], Fault], int]] = [
    ("status 400", lambda: Status(400, "The input is too long"), 400),
    ("status 404", lambda: Status(404), 404),
    ("status 422", lambda: Status(422), 422),
    ("status 429", lambda: Status(429), 429),
    ("status 503", lambda: Status(503), 503),
]


def named(cases: list[tuple[str, Callable[[], Fault], int]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("fault", "status"), [c[1:] for c in cases], ids=[c[0] for c in cases])


async def ended(leg: Received) -> str:
    """How the leg ended, which must be soon."""
    async with asyncio.timeout(SOON_S):
        await leg.ended.wait()
    return leg.outcome


async def one_leg_fails(failing: str, fault: Fault, stream: bool, *flags: str) -> tuple[int, Received, FakeWorker]:
    """Both pools have one worker and nothing is retried. Returns the status, the other leg, and its worker."""
    async with cluster(prefill=1, decode=1, flags=("--disable-retries", *flags)) as c:
        bad, good = (c.prefill[0], c.decode[0]) if failing == "prefill" else (c.decode[0], c.prefill[0])
        bad.script(fault)
        async with asyncio.timeout(SOON_S):
            reply = await c.request("POST", CHAT, chat(stream=stream))
        other = await asyncio.wait_for(good.arrived(), SOON_S)
        assert await ended(other) == "aborted"
        assert other.rid in good.aborts
        assert "choices" not in reply.body.decode(errors="replace"), "the client must not see any tokens"
        assert "127.0.0.1" not in reply.body.decode(errors="replace"), (
            "workers' addresses are not the client's business"
        )
        return reply.status, other, good


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("failing", ["prefill", "decode"])
@named(LOST + REFUSED)
async def test_other_leg_is_aborted(failing: str, stream: bool, fault: Callable[[], Fault], status: int) -> None:
    got, _, _ = await one_leg_fails(failing, fault(), stream)
    assert got == status


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("failing", "flags"),
    [
        ("prefill", ("--prefill-timeout-secs", "0.3")),
        ("prefill", ("--request-timeout-secs", "0.3")),
        ("decode", ("--request-timeout-secs", "0.3")),
    ],
)
async def test_hanging_leg_ends_with_504(failing: str, stream: bool, flags: tuple[str, ...]) -> None:
    """Rows 26, 27 (stuck for ever): every wait is bounded, and both legs are aborted."""
    got, _, _ = await one_leg_fails(failing, Hang(), stream, *flags)
    assert got == 504


async def test_hanging_decode_ends_before_its_first_token() -> None:
    got, _, _ = await one_leg_fails("decode", Hang(), True, "--first-token-timeout-secs", "0.3")
    assert got == 504


@named(REFUSED[:3])
async def test_refusals_pass_unchanged(fault: Callable[[], Fault], status: int) -> None:
    """Rows 16, 28, 50: the worker's own words, its body and its status, byte for byte."""
    async with cluster(prefill=1, decode=1) as c:
        body = b'{"object": "error",  "message":"as it was","type":"BadRequestError","param":"x","code":%d}' % status
        c.prefill[0].script(Status(status, body=body))
        reply = await c.chat()
        assert (reply.status, reply.body) == (status, body)
        assert len(c.prefill[0].requests) == 1, "a client's mistake is not retried"


async def test_both_legs_refuse() -> None:
    """Of two errors at once the client gets one whole error, not a mixture."""
    async with cluster(prefill=1, decode=1, flags=["--disable-retries"]) as c:
        c.prefill[0].script(Status(500, "kv lost"))
        c.decode[0].script(Status(400, "bad image"))
        reply = await c.chat()
        assert (reply.status, reply.error["message"]) == (400, "bad image")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_empty_answer_is_an_error(stream: bool) -> None:
    """Row 31 (vllm-ascend#13140...): HTTP 200 with an empty body when the decoder fails."""
    async with cluster(prefill=1, decode=1, flags=["--disable-retries"]) as c:
        c.decode[0].script(Status(200, body=b"", type_="text/event-stream" if stream else "application/json"))
        reply = await c.chat(stream=stream)
        assert reply.status == 502
        assert reply.error["message"]


async def test_batch_is_aborted_item_by_item() -> None:
    """SGLang ignores an abort for the common prefix of a batch's ids: each item has to be named."""
    async with cluster(prefill=1, decode=1, flags=["--disable-retries"]) as c:
        c.prefill[0].script(Status(500))
        reply = await c.request("POST", "/generate", {"text": ["a", "b", "c"]})
        assert reply.status == 500
        leg = await c.decode[0].arrived()
        assert await ended(leg) == "aborted"
        assert set(leg.rids) <= set(c.decode[0].aborts)
