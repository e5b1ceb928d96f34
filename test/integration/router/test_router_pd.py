"""Prefill and decode: both legs get the request, the client gets decode's answer, rooms are never shared."""

from __future__ import annotations

import json

import pytest
from cluster import chat, cluster
from fakes import answers


async def test_chat_reaches_both_legs_and_answers_from_decode() -> None:
    async with cluster(prefill=1, decode=1) as c:
        reply = await c.chat("hi", seed=7)
        assert reply.status == 200
        assert reply.json()["choices"][0]["message"]["content"] == answers.text(chat("hi", seed=7))
        (p,), (d,) = c.prefill[0].requests, c.decode[0].requests
        assert p.rooms == d.rooms
        assert p.rooms[0][:2] == ("127.0.0.1", c.prefill[0].bootstrap_port)
        assert (p.outcome, d.outcome) == ("finished", "finished")


async def test_stream_passes_every_event() -> None:
    """Row 73 (vllm-router#113): no streaming in PD mode."""
    async with cluster(prefill=1, decode=1) as c:
        body = chat("hi", stream=True, max_tokens=32, stream_options={"include_usage": True})
        reply = await c.request("POST", "/v1/chat/completions", body)
        assert reply.status == 200
        assert reply.header("content-type") == "text/event-stream; charset=utf-8"
        expected = b"".join(answers.events("/v1/chat/completions", body, [c.decode[0].requests[0].rids[0]]))
        assert reply.body == expected + b"data: [DONE]\n\n"
        assert json.loads(reply.events[-2])["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize(
    ("path", "body", "width"),
    [
        ("/v1/chat/completions", chat(n=3), 3),
        ("/v1/completions", {"model": "m", "prompt": "a", "n": 2}, 2),
        ("/v1/completions", {"model": "m", "prompt": ["a", "b", "c"]}, 3),
        ("/v1/completions", {"model": "m", "prompt": ["a", "b"], "n": 2}, 4),
        ("/v1/completions", {"model": "m", "prompt": [1, 2, 3]}, 1),
        ("/generate", {"text": "a", "sampling_params": {"n": 4}}, 4),
        ("/generate", {"text": ["a", "b"]}, 2),
        ("/generate", {"input_ids": [[1, 2], [3]], "sampling_params": {"max_new_tokens": 2}}, 2),
    ],
)
async def test_sequences_of_one_request_have_their_own_rooms(path: str, body: dict, width: int) -> None:
    """Row 65 (sglang#24223, #26486, #30723, #40297, #9224): n > 1 or a batch shared a room and hung."""
    async with cluster(prefill=1, decode=1) as c:
        reply = await c.request("POST", path, body)
        assert reply.status == 200
        p, d = (sorted(room for leg in w[0].requests for room in leg.rooms) for w in (c.prefill, c.decode))
        assert len(set(p)) == width
        assert p == d
        value = reply.json()
        items = value if isinstance(value, list) else value.get("choices", [value])
        texts = [i.get("text") or i.get("message", {}).get("content") for i in items]
        sent = [answers.text(leg.body, i) for leg in c.decode[0].requests for i in range(len(leg.rooms))]
        assert sorted(texts) == sorted(sent)
        if "choices" in value:
            assert [i["index"] for i in items] == list(range(width))
