"""Bodies: passed byte for byte but for what the router must set; large ones work; oversized ones are refused quickly.

Behaviour groups 6, 7 and 8. Rows 17 (sglang#28587: no pixel cap, base64 in logs), 29 (vllm#56657: serialisation), 38
(dynamo#6072: base64 image), 64 (sglang#7860, vllm-router#2: stream_options), 67 (sglang#9690: tools), 68 (sglang#6622,
#38714, #38735: 413 for base64 images).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
import struct
import zlib
from typing import Any

import pytest
from cluster import chat, chat_with_images, cluster
from fakes import Status, answers

CHAT = "/v1/chat/completions"
ROUTER_FIELDS = {"rid", "bootstrap_host", "bootstrap_port", "bootstrap_room"}


def check_spliced(sent: bytes, received: bytes) -> None:
    """`received` is `sent` with one piece put in, and that piece holds the router's fields and nothing else."""
    sent = sent.rstrip()
    start = next((i for i, (a, b) in enumerate(zip(sent, received, strict=False)) if a != b), len(sent))
    tail = len(sent) - start
    assert received[len(received) - tail :] == sent[start:], "more than one place was changed"
    # The piece may be found shifted, as it can begin like what follows it; parsing tells what it adds.
    assert len(received) > len(sent)
    before, after = json.loads(sent), json.loads(received)
    assert set(after) - set(before) <= ROUTER_FIELDS
    assert {key: after[key] for key in before} == before


ODD_BODIES: dict[str, bytes] = {
    "spaces": b' {  "model" : "m" ,"messages":[{"role":"user","content":"hi"}] }  \n',
    "numbers": b'{"messages":[],"temperature":1.0000000000000000001,"seed":12345678901234567890123,"top_p":1e-7}',
    "escapes": rb'{"messages":[{"role":"user","content":"\u00e9\ud83d\ude00\/ \u2028 \"}{"}],"x":"\\"}',
    "utf-8": '{"messages":[{"role":"user","content":"日本語 ñ 😀"}]}'.encode(),
    "unknown fields": b'{"messages":[],"made_up":{"a":[1,{"b":null}]},"lora_path":["x",null],"Messages":1}',
    "key order": b'{"zzz":1,"messages":[],"aaa":2,"stream":false,"model":"m"}',
    "duplicate keys": b'{"messages":[],"user":"first","user":"second"}',
    "nothing but messages": b'{"messages":[]}',
    "empty object": b"{}",
    "decoy fields": b'{"messages":[{"role":"user","content":"\\"rid\\":1,\\"bootstrap_room\\":1}"}],"a":{"rid":5}}',
    "not quite JSON": b'{"messages":[],"temperature":NaN}',
    "wrong types": b'{"messages":"none","model":5,"stream":"yes","max_tokens":"3"}',
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES)
async def test_bytes_are_untouched(body: bytes) -> None:
    async with cluster(prefill=1, decode=1) as c:
        reply = await c.request("POST", CHAT, body)
        assert reply.status == 200, reply.body
        for worker in (c.prefill[0], c.decode[0]):
            if body == ODD_BODIES["not quite JSON"]:
                assert worker.requests[0].request.body.startswith(body[:-1])
            else:
                check_spliced(body, worker.requests[0].request.body)
        assert c.prefill[0].requests[0].request.body == c.decode[0].requests[0].request.body


async def test_aggregated_bodies_are_untouched_too() -> None:
    async with cluster(regular=1) as c:
        body = ODD_BODIES["unknown fields"]
        assert (await c.request("POST", CHAT, body)).status == 200
        received = c.regular[0].requests[0].request.body
        check_spliced(body, received)
        assert not {"bootstrap_host", "bootstrap_port", "bootstrap_room"} & set(json.loads(received))


async def test_fields_that_clients_care_for_survive() -> None:
    """Rows 64 and 67, sglang#10766: tools, tool messages, logprobs, stream_options, response_format, extra sampling."""
    fields: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 5,
        "chat_template_kwargs": {"enable_thinking": False},
        "custom_params": {"a": 1},
    }
    async with cluster(prefill=1, decode=1) as c:
        body = chat("hi", **fields)
        body["messages"] += [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ]
        reply = await c.request("POST", CHAT, body)
        assert reply.status == 200
        assert reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
        for worker in (c.prefill[0], c.decode[0]):
            got = worker.requests[0].body
            assert {key: got[key] for key in body} == body


async def test_a_clients_own_routing_fields_do_not_count() -> None:
    """Ids and rooms are the router's: two clients with the same ones must not meet. The client's id comes back."""
    async with cluster(prefill=1, decode=1) as c:
        mine = {"rid": "mine", "bootstrap_host": "evil", "bootstrap_port": 1, "bootstrap_room": 7}
        replies = await asyncio.gather(*(c.chat(f"n{i}", **mine) for i in range(5)))
        assert [r.status for r in replies] == [200] * 5
        assert {r.json()["id"] for r in replies} == {"mine"}
        legs = [*c.prefill[0].requests, *c.decode[0].requests]
        assert all(room[:2] == ("127.0.0.1", 8998) and room[2] != 7 for leg in legs for room in leg.rooms)
        assert "mine" not in {leg.rid for leg in legs}


@pytest.mark.parametrize("mib", [1, 10, 50])
async def test_large_bodies(mib: int) -> None:
    """Row 68: base64 images of tens of megabytes pass."""
    async with cluster(prefill=1, decode=1) as c:
        image = base64.b64encode(random.Random(1).randbytes(mib * 3 << 18)).decode()
        body = json.dumps(chat_with_images(f"data:image/png;base64,{image}")).encode()
        assert len(body) > mib << 20
        reply = await c.request("POST", CHAT, body)
        assert reply.status == 200
        assert answers.digest(json.loads(body)) in reply.body.decode()
        received = c.decode[0].requests[0].request.body
        assert received[: len(body) - 1] == body[:-1]


async def test_several_large_bodies_at_once() -> None:
    async with cluster(prefill=2, decode=2) as c:
        bodies = [chat_with_images("data:image/png;base64," + "A" * (4 << 20), text=f"n{i}") for i in range(8)]
        replies = await asyncio.gather(*(c.request("POST", CHAT, body) for body in bodies))
        for body, reply in zip(bodies, replies, strict=True):
            assert answers.digest(body) in reply.body.decode()


async def test_too_large_is_refused_before_it_is_sent() -> None:
    """Behaviour group 6: 413 as soon as the length is known."""
    async with cluster(prefill=1, decode=1, flags=["--max-payload-size", "1000"]) as c, await c.link() as link:
        await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
        async with asyncio.timeout(2):
            reply = await link.reply()
        assert reply.status == 413
        assert "1000" in reply.error["message"]
        assert not c.prefill[0].requests


async def test_too_large_is_refused_while_a_client_sends_blindly() -> None:
    """A client that does not wait for answers still gets the 413, not a reset."""
    async with cluster(prefill=1, decode=1, flags=["--max-payload-size", "1000"]) as c:
        reply = await c.request("POST", CHAT, b'{"messages":"' + b"x" * (3 << 20) + b'"}')
        assert reply.status == 413


async def test_too_large_in_chunks_is_refused_too() -> None:
    async with cluster(prefill=1, decode=1, flags=["--max-payload-size", "1000"]) as c, await c.link() as link:
        await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await link.send_raw((b"100\r\n" + b"x" * 256 + b"\r\n") * 8)
        async with asyncio.timeout(2):
            assert await link.read_head() == 413


@pytest.mark.parametrize("size", [999, 1000])
async def test_the_limit_itself_is_allowed(size: int) -> None:
    async with cluster(prefill=1, decode=1, flags=["--max-payload-size", "1000"]) as c:
        body = b'{"messages":[],"user":"' + b"x" * (size - 25) + b'"}'
        assert len(body) == size
        assert (await c.request("POST", CHAT, body)).status == 200


async def test_chunked_bodies_are_understood() -> None:
    async with cluster(prefill=1, decode=1) as c, await c.link() as link:
        body = json.dumps(chat("in pieces")).encode()
        await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for i in range(0, len(body), 7):
            piece = body[i : i + 7]
            await link.send_raw(b"%x\r\n%b\r\n" % (len(piece), piece))
        await link.send_raw(b"0\r\n\r\n")
        assert (await link.reply()).status == 200
        assert c.decode[0].requests[0].body["messages"][0]["content"] == "in pieces"


async def test_expect_100_continue() -> None:
    """curl asks first when a body is large."""
    async with cluster(prefill=1, decode=1) as c, await c.link() as link:
        body = json.dumps(chat()).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
        await link.send_raw(head.encode())
        async with asyncio.timeout(2):
            assert (await link.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await link.send_raw(body)
        assert (await link.reply()).status == 200


async def test_slow_body_is_taken_and_a_stalled_one_is_not() -> None:
    async with cluster(prefill=1, decode=1, flags=["--stream-body-stall-timeout-secs", "0.5"]) as c:
        async with await c.link() as link:
            await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n")
            for piece in (b'{"messa', b"ges", b'":[]}'):
                await asyncio.sleep(0.1)
                await link.send_raw(piece)
            assert (await link.reply()).status == 200
        async with await c.link() as link:
            await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n{")
            async with asyncio.timeout(5):
                assert await link.read_head() == 408


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b'"text"', b'{"messages":[}', b'{"messages":[]', b"null", b"\xff\xfe{}"]
)
async def test_what_is_no_json_object_gets_400(body: bytes) -> None:
    async with cluster(prefill=1, decode=1) as c:
        reply = await c.request("POST", CHAT, body)
        assert reply.status == 400
        assert reply.error["type"] == "BadRequestError"
        assert not c.prefill[0].requests


def png_header(width: int, height: int) -> str:
    """A data URI whose header claims a size; there are no pixels behind it."""
    data = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + data + struct.pack(">I", zlib.crc32(data))
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk + b"\0" * 64).decode()


async def test_huge_images_are_refused_by_their_header() -> None:
    """Row 17: no decompression bomb reaches a worker."""
    async with cluster(prefill=1, decode=1, flags=["--max-image-pixels", "1000000"]) as c:
        ok = await c.request("POST", CHAT, chat_with_images(png_header(1000, 1000)))
        assert ok.status == 200
        refused = await c.request("POST", CHAT, chat_with_images(png_header(10, 10), png_header(1001, 1000)))
        assert refused.status == 400
        assert "1001 x 1000" in refused.error["message"]
        assert len(c.prefill[0].requests) == 1


async def test_bodies_and_keys_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Row 17: base64 written to logs. Also after errors, with everything logged."""
    caplog.set_level(logging.DEBUG)
    secret, image, key = "SECRETPROMPT", "SECRETIMAGE" * 10, "sk-SECRETKEY"
    async with cluster(prefill=1, decode=1, flags=["--api-key", key, "--disable-retries"]) as c:
        body = chat_with_images(f"data:image/png;base64,{image}", text=secret)
        for fault in (None, Status(500, secret), Status(400)):
            if fault:
                c.prefill[0].script(fault)
            await c.request("POST", CHAT, body, authorization=f"Bearer {key}")
        await c.request("POST", CHAT, body, authorization=f"Bearer wrong-{key}")
        await c.request("POST", CHAT, json.dumps(body).encode()[:-1], authorization=f"Bearer {key}")
    for word in (secret, "SECRETIMAGE", "SECRETKEY"):
        assert word not in caplog.text


async def test_prompt_logprobs_come_from_prefill() -> None:
    """Only the prefill worker has them; decode's answer is completed, as mini_lb does."""
    async with cluster(prefill=1, decode=1) as c:
        body = {"text": "a", "return_logprob": True, "sampling_params": {"max_new_tokens": 2}}
        reply = await c.request("POST", "/generate", body)
        meta = reply.json()["meta_info"]
        assert meta["input_token_logprobs"] == [[-0.5, 7, None]]
        assert len(meta["output_token_logprobs"]) == 2
