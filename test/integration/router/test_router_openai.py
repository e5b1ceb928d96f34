"""The clients that people use: the `openai` package and curl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from cluster import Cluster, chat, chat_with_images, cluster
from fakes import AbortReason, Gate, Reset, Status, answers

MODEL = "fake-vl"
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client(c: Cluster, key: str = "none", **kwargs: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=c.url + "/v1", api_key=key, max_retries=0, **kwargs) as made:
        yield made


async def test_chat() -> None:
    async with cluster(prefill=1, decode=1) as c, client(c) as api:
        reply = await api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3)
        assert reply.choices[0].message.content == answers.text(c.decode[0].requests[0].body)
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 3


async def test_stream_with_usage() -> None:
    async with cluster(prefill=1, decode=1) as c, client(c) as api:
        options: Any = {"include_usage": True}
        stream = await api.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options=options
        )
        chunks = [chunk async for chunk in stream]
        words = "".join(ch.choices[0].delta.content or "" for ch in chunks if ch.choices)
        assert words == answers.text(c.decode[0].requests[0].body)
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 13


async def test_images_tools_and_n() -> None:
    async with cluster(prefill=1, decode=1) as c, client(c) as api:
        tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        messages: Any = chat_with_images("data:image/png;base64,AAAA")["messages"]
        reply = await api.chat.completions.create(model=MODEL, messages=messages, tools=tools, n=2, max_tokens=2)
        assert [choice.index for choice in reply.choices] == [0, 1]
        call: Any = (reply.choices[1].message.tool_calls or [])[0]
        assert call.function.name == "look"


async def test_completions_embeddings_models() -> None:
    async with cluster(regular=1) as c, client(c) as api:
        done = await api.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2)
        assert [choice.text for choice in done.choices] == [
            answers.text(c.regular[0].requests[0].body, i) for i in range(2)
        ]
        vectors = await api.embeddings.create(model=MODEL, input=["a", "bb"], encoding_format="float")
        assert [d.embedding for d in vectors.data] == [[1.0], [2.0]]
        assert [m.id async for m in api.models.list()] == [MODEL]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_workers_errors_become_exceptions(status: int, kind: type[openai.APIStatusError], stream: bool) -> None:
    async with cluster(prefill=1, decode=1, flags=["--disable-retries"]) as c, client(c) as api:
        c.prefill[0].script(Status(status, "as the worker says"))
        with pytest.raises(kind) as caught:
            await api.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)  # type: ignore[call-overload]
        assert caught.value.status_code == status
        assert "as the worker says" in caught.value.message


async def test_the_routers_own_errors_become_exceptions() -> None:
    async with cluster(prefill=1, decode=1, flags=["--api-key", "sk", "--max-payload-size", "2000"]) as c:
        async with client(c, "wrong") as api:
            with pytest.raises(openai.AuthenticationError) as denied:
                await api.chat.completions.create(model=MODEL, messages=MESSAGES)
            assert denied.value.code == "invalid_api_key"
        async with client(c, "sk") as api:
            with pytest.raises(openai.APIStatusError) as large:
                await api.chat.completions.create(model="m" * 4000, messages=MESSAGES)
            assert large.value.status_code == 413
            with pytest.raises(openai.NotFoundError):
                await api.get("/nonsense", cast_to=object)
            await c.prefill[0].kill()
            with pytest.raises(openai.InternalServerError) as lost:
                await api.chat.completions.create(model=MODEL, messages=MESSAGES)
            assert lost.value.status_code in (502, 503)


@pytest.mark.parametrize(
    "fault", [lambda: Reset(after=3), lambda: AbortReason(500, "lost", after=3)], ids=["reset", "abort"]
)
async def test_broken_stream_raises(fault: Any) -> None:
    """The client must notice: an exception, not a short answer that looks complete."""
    async with cluster(prefill=1, decode=1) as c, client(c) as api:
        c.decode[0].script(fault())
        stream = await api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20, stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_client_timeout_ends_the_legs() -> None:
    async with cluster(prefill=1, decode=1) as c, client(c, timeout=0.3) as api:
        gate = Gate()
        c.decode[0].script(gate)
        with pytest.raises(openai.APITimeoutError):
            await api.chat.completions.create(model=MODEL, messages=MESSAGES)
        await c.quiet()
        assert {w.requests[0].outcome for w in c.workers} == {"aborted"}


async def test_closing_a_stream_early_ends_the_legs() -> None:
    async with cluster(prefill=1, decode=1) as c, client(c) as api:
        gate = Gate(after=4)
        c.decode[0].script(gate)
        stream = await api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=50, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await c.quiet()
        assert c.decode[0].requests[0].outcome == "aborted"


async def curl(*args: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--max-time", "10", *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_curl() -> None:
    """Also with a body large enough for `Expect: 100-continue`."""
    async with cluster(prefill=1, decode=1) as c:
        url, json_type = f"{c.url}/v1/chat/completions", ("-H", "content-type: application/json")
        body = chat("x" * 2_000_000)
        process = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "--max-time", "10", *json_type, "--data-binary", "@-", url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate(json.dumps(body).encode())
        assert answers.digest(body) in output.decode()
        code, text = await curl("-N", *json_type, "-d", json.dumps(chat(stream=True)), url)
        assert code == 0
        assert text.endswith("data: [DONE]\n\n")
        code, text = await curl("-w", "%{http_code}", "-X", "DELETE", url)
        assert text.endswith("405")
        code, text = await curl("--http1.0", *json_type, "-d", json.dumps(chat()), url)
        assert answers.digest(chat()) in text
