"""Bad input gets from E + P + D the status and error that one SGLang server gives, soon, and harms nobody else."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx
import pytest
from client import ask, assert_same
from cluster import Cluster
from pictures import chat, data_uri, image_part, picture

WITHIN_S = 15.0
GOOD = chat("What is in the picture?", [picture(20)])
WHOLE_PNG = base64.b64decode(data_uri(picture(21)).partition(",")[2])


def with_image(uri: str, **fields: Any) -> dict[str, Any]:
    parts = [image_part(uri), {"type": "text", "text": "What is it?"}]
    return {**GOOD, "messages": [{"role": "user", "content": parts}], **fields}


def png(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


BAD: dict[str, dict[str, Any]] = {
    "truncated image": with_image(png(WHOLE_PNG[: len(WHOLE_PNG) // 2])),
    "garbage image": with_image(png(b"\x89PNG\r\n\x1a\n" + b"garbage" * 40)),
    "empty image": with_image("data:image/png;base64,"),
    "not an image": with_image("data:text/plain;base64," + base64.b64encode(b"hello").decode()),
    "not base64": with_image("data:image/png;base64,%%%%"),
    "unreachable url": with_image("http://127.0.0.1:9/picture.png"),
    "no such file": with_image("/nowhere/picture.png"),
    "one good, one broken": {
        **GOOD,
        "messages": [
            {
                "role": "user",
                "content": [
                    image_part(data_uri(picture(22))),
                    image_part(png(WHOLE_PNG[:60])),
                    {"type": "text", "text": "What are they?"},
                ],
            }
        ],
    },
    "max_tokens 0": {**GOOD, "max_tokens": 0},
    "max_tokens negative": {**GOOD, "max_tokens": -1},
    "temperature negative": {**GOOD, "temperature": -1},
    "prompt too long": chat("word " * 40000),
    "no messages": {"model": "default"},
    "empty messages": {**GOOD, "messages": []},
    "messages of the wrong type": {**GOOD, "messages": "hello"},
    "unknown part type": {**GOOD, "messages": [{"role": "user", "content": [{"type": "smell", "smell": "rose"}]}]},
}


def post(url: str, body: dict[str, Any] | None, **kwargs: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False, **kwargs)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", BAD)
def test_same_error_as_one_server(cluster: Cluster, case: str, stream: bool) -> None:
    body = {**BAD[case], "stream": stream}
    expected = post(cluster.servers["mixed"].url, body)
    started_at = time.monotonic()
    found = post(cluster.servers["router"].url, body)
    assert time.monotonic() - started_at < WITHIN_S
    assert found.status_code == expected.status_code, f"{found.text}\n--- one server: {expected.text}"
    if expected.status_code != 200:
        _assert_openai_error(found.json())
    assert_same(ask(cluster.servers["router"].url, GOOD), ask(cluster.servers["mixed"].url, GOOD))


def _assert_openai_error(error: dict[str, Any]) -> None:
    """What OpenAI clients read: a message and a type, in `error` or (SGLang's way) at the top. Their words may differ
    from the yardstick's, since another process found the fault, and SGLang itself writes several types for one
    status."""
    inner = error.get("error", error)
    assert isinstance(inner["message"], str) and inner["message"]
    assert isinstance(inner["type"], str) and inner["type"]


def test_broken_json(cluster: Cluster) -> None:
    replies = [
        httpx.post(
            f"{cluster.servers[name].url}/v1/chat/completions", content=b'{"model": ', trust_env=False, timeout=30
        )
        for name in ("router", "mixed")
    ]
    assert replies[0].status_code == replies[1].status_code == 400
    _assert_openai_error(replies[0].json())


def test_unknown_route_and_method(cluster: Cluster) -> None:
    url = cluster.servers["router"].url
    assert httpx.get(f"{url}/v1/nothing", trust_env=False).status_code == 404
    assert httpx.get(f"{url}/v1/chat/completions", trust_env=False).status_code == 405
