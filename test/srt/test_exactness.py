"""E + P + D through the router answers exactly what one aggregated SGLang server answers.

A wrong embedding, a swapped image or a lost KV block changes the log-probabilities long before it changes the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from client import ask, assert_same
from cluster import Cluster
from pictures import chat, picture

LONG = "Read this text first. " + "The quick brown fox jumps over the lazy dog. " * 60

CASES: dict[str, dict[str, Any]] = {
    "one image": chat("What is in the picture?", [picture(1)]),
    "another image": chat("What is in the picture?", [picture(2, 140, 84)]),
    "two images": chat("What is in the pictures?", [picture(3), picture(4, 168, 112)]),
    "two images swapped": chat("What is in the pictures?", [picture(4, 168, 112), picture(3)]),
    "three images": chat("Describe each.", [picture(5), picture(6, 84, 196), picture(7, 224, 224)]),
    "the same image twice": chat("What is in the pictures?", [picture(8), picture(8)]),
    "text only": chat("Hello, who are you?"),
    "a long prompt": chat(LONG + "What did the fox do?"),
    "a long prompt with an image": chat(LONG + "What is in the picture?", [picture(9)]),
    "seeded sampling": chat("Tell me something.", [picture(10)], temperature=1.0, seed=1234, max_tokens=32),
    "seeded top-p": chat("Tell me something.", [picture(11)], temperature=1.5, top_p=0.9, seed=7, max_tokens=32),
}


@pytest.fixture(params=[2, 1], ids=["two encoders", "one encoder"])
def encoders(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[int]:
    """Takes the second encoder out of prefill's list for the tests with one."""
    registry = f"http://127.0.0.1:{cluster.servers['prefill'].encoder_bootstrap_port}"
    second = {"url": cluster.servers["encode-1"].url}
    if request.param == 1:
        httpx.request("DELETE", f"{registry}/unregister_encoder_url", json=second).raise_for_status()
    try:
        listed = httpx.get(f"{registry}/list_encoder_urls").json()["encoder_urls"]
        assert len(listed) == request.param
        yield request.param
    finally:
        httpx.post(f"{registry}/register_encoder_url", json=second).raise_for_status()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES)
def test_same_answer_as_one_server(cluster: Cluster, encoders: int, case: str, stream: bool) -> None:
    body = {**CASES[case], "stream": stream}
    expected = ask(cluster.servers["mixed"].url, body)
    assert_same(ask(cluster.servers["router"].url, body), expected)


def test_cases_tell_images_apart(cluster: Cluster) -> None:
    """The yardstick itself: swapping two images changes the log-probabilities by far more than the tolerance."""
    url = cluster.servers["mixed"].url
    straight, swapped = (ask(url, CASES[name]) for name in ("two images", "two images swapped"))
    assert (
        straight.tokens != swapped.tokens
        or max(abs(a - b) for a, b in zip(straight.logprobs, swapped.logprobs, strict=True)) > 1e-3
    )
