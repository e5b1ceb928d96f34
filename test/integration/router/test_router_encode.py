"""Three stages in stock mode: prefill workers ask the encoders that the router lists for them.

Rows 1 (sglang#23082: 200 image requests, 150 lost), 4 (sglang#16670: bad image hangs), 5 (sglang#36945: failed encode
became HTTP 200), 6 (sglang#36969: malformed encoder error), 16, 28 (vllm#38253: 400 stays 400), 22 (order of items), 33
(every media type), 46 (dynamo#11913: an encoder crash); behaviour group 9 (a dead encoder is skipped).
"""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster, chat, chat_with_images, cluster
from fakes import answers

CHAT = "/v1/chat/completions"
PICTURE = "data:image/png;base64,AAAA"


async def listed(c: Cluster, *urls: str) -> None:
    """Wait until every prefill worker knows exactly these encoders."""
    async with asyncio.timeout(5):
        for worker in c.prefill:
            await worker.encoders.becomes(set(urls))


def encoded(c: Cluster) -> list[str]:
    return sorted(item for encoder in c.encode for call in encoder.encoded for item in call["mm_items"])


async def test_images_are_encoded_on_the_listed_encoders() -> None:
    async with cluster(prefill=2, decode=1, encode=2) as c:
        await listed(c, *(e.url for e in c.encode))
        body = chat_with_images("http://x/a.png", "http://x/b.png", PICTURE)
        reply = await c.request("POST", CHAT, body)
        assert answers.digest(body) in reply.body.decode()
        assert encoded(c) == sorted(["http://x/a.png", "http://x/b.png", PICTURE])


async def test_every_kind_of_media() -> None:
    """Row 33 (llm-d-router#1414): video was forgotten."""
    async with cluster(prefill=1, decode=1, encode=1) as c:
        await listed(c, c.encode[0].url)
        body = chat()
        body["messages"][0]["content"] = [
            {"type": "video_url", "video_url": {"url": "http://x/v.mp4"}},
            {"type": "audio_url", "audio_url": {"url": "http://x/a.wav"}},
            {"type": "text", "text": "compare"},
        ]
        assert (await c.request("POST", CHAT, body)).status == 200
        assert encoded(c) == ["http://x/a.wav", "http://x/v.mp4"]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"status":"error","message":"cannot decode the image","req_id":"r"}', 400),
        (500, b'{"status":"error","message":"out of memory","req_id":"r"}', 500),
        (500, b"<html>not json", 500),
        (503, b'{"status":"error","message":"no encoder rank left","req_id":"r"}', 503),
        (504, b'{"status":"error","message":"encoder batch timed out","req_id":"r"}', 504),
    ],
)
async def test_encoder_errors_reach_the_client_soon(status: int, body: bytes, expected: int) -> None:
    """Rows 4, 5, 6, 16, 28: as an error with its status, in well under a second, and decode does not wait for ever."""
    async with cluster(prefill=1, decode=1, encode=1, flags=["--disable-retries"]) as c:
        await listed(c, c.encode[0].url)
        c.encode[0].reply = (status, body)
        async with asyncio.timeout(1):
            reply = await c.request("POST", CHAT, chat_with_images(PICTURE, stream=True))
        assert reply.status == expected
        await c.quiet()
        assert c.decode[0].outcomes == {"aborted": 1}


async def test_encoder_crash_is_survived() -> None:
    """Row 46: an encoder dies; requests that it had are tried again, and it is taken out of every list."""
    async with cluster(prefill=2, decode=1, encode=2, flags=["--encoder-sync-interval-secs", "0.2"]) as c:
        await listed(c, *(e.url for e in c.encode))
        await c.encode[0].kill()
        await listed(c, c.encode[1].url)
        replies = await asyncio.gather(*(c.request("POST", CHAT, chat_with_images(f"http://x/{i}")) for i in range(20)))
        assert {r.status for r in replies} == {200}
        await c.encode[0].start()
        await listed(c, *(e.url for e in c.encode))


async def test_flood_of_images_loses_none() -> None:
    """Row 1: many image requests at once, each of them ends with its own answer."""
    async with cluster(prefill=2, decode=2, encode=2) as c:
        await listed(c, *(e.url for e in c.encode))
        bodies = [chat_with_images(f"http://x/{i}-0", f"http://x/{i}-1", text=f"n{i}") for i in range(200)]
        replies = await asyncio.gather(*(c.request("POST", CHAT, body) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            assert reply.status == 200
            assert answers.digest(body) in reply.body.decode()
        assert len(encoded(c)) == 400


async def test_slow_encoder_ends_with_the_prefill_deadline() -> None:
    """A hung encoder (180 s in SGLang) is bounded by the router's own deadline."""
    async with cluster(prefill=1, decode=1, encode=1, flags=["--prefill-timeout-secs", "0.4"]) as c:
        await listed(c, c.encode[0].url)
        c.encode[0].gate = asyncio.Event()
        async with asyncio.timeout(3):
            reply = await c.request("POST", CHAT, chat_with_images(PICTURE))
        assert reply.status == 504
        c.encode[0].gate.set()


async def test_order_of_items_is_kept() -> None:
    """Row 22: what the workers get is the client's order, duplicates included."""
    urls = ["http://x/b", "http://x/a", "http://x/b", "http://x/c"]
    async with cluster(prefill=1, decode=1, encode=2) as c:
        await listed(c, *(e.url for e in c.encode))
        assert (await c.request("POST", CHAT, chat_with_images(*urls))).status == 200
        parts = c.prefill[0].requests[0].body["messages"][0]["content"]
        assert [p["image_url"]["url"] for p in parts[1:]] == urls
        assert encoded(c) == sorted(urls)
