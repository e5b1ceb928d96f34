"""What a test reads from an answer: the text and each token with its log-probabilities."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx

TIMEOUT_S = 90.0


class Answer(NamedTuple):
    text: str
    finish_reason: str
    tokens: list[str]
    logprobs: list[float]
    top: list[dict[str, float]]
    usage: dict[str, int]


def ask(url: str, body: dict[str, Any]) -> Answer:
    """One chat request with log-probabilities, streamed if `body["stream"]` says so."""
    body = {**body, "logprobs": True, "top_logprobs": 5}
    if not body.get("stream"):
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT_S, trust_env=False)
        return answer_of(reply)
    return _ask_streaming(url, {**body, "stream_options": {"include_usage": True}})


def answer_of(reply: httpx.Response) -> Answer:
    """Of a whole answer to a chat request with log-probabilities."""
    assert reply.status_code == 200, reply.text
    data = reply.json()
    choice = data["choices"][0]
    return _answer(choice["message"]["content"], choice["finish_reason"], [choice["logprobs"]], data["usage"])


def _ask_streaming(url: str, body: dict[str, Any]) -> Answer:
    text, finish, logprobs, usage = "", "", [], {}
    events = stream_events(url, body)
    assert events[-1] == "[DONE]", events[-1]
    for event in map(json.loads, events[:-1]):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            logprobs.append(choice.get("logprobs"))
    return _without_end_token(_answer(text, finish, logprobs, usage))


def _without_end_token(answer: Answer) -> Answer:
    """SGLang 0.5.23 sends a streamed step's log-probabilities with its text. The end token has none, so its entry comes
    only where it shared a step with the last word (`serving_chat.py`, `remaining_logprobs`): chance, not content."""
    if "".join(answer.tokens) == answer.text:
        return answer
    assert "".join(answer.tokens[:-1]) == answer.text, answer
    return answer._replace(tokens=answer.tokens[:-1], logprobs=answer.logprobs[:-1], top=answer.top[:-1])


def stream_events(url: str, body: dict[str, Any]) -> list[str]:
    """The `data:` payloads of a streamed chat answer."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT_S, trust_env=False) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]


def _answer(text: str, finish: str, logprobs: list[dict[str, Any] | None], usage: dict[str, int]) -> Answer:
    content = [token for part in logprobs if part for token in part["content"]]
    return Answer(
        text=text,
        finish_reason=finish,
        tokens=[token["token"] for token in content],
        logprobs=[token["logprob"] for token in content],
        top=[{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in content],
        usage={key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")},
    )


def assert_same(found: Answer, expected: Answer, tolerance: float = 2e-5) -> None:
    """Same text, tokens, usage and log-probabilities. The tolerance covers float32 sums in another order (a prefix
    that one side has cached is not computed in the same batch)."""
    import pytest

    assert found.text == expected.text
    assert found.finish_reason == expected.finish_reason
    assert found.tokens == expected.tokens
    assert found.usage == expected.usage
    assert 0 < len(found.logprobs) <= expected.usage["completion_tokens"]
    assert found.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
    for ours, theirs in zip(found.top, expected.top, strict=True):
        assert ours == pytest.approx(theirs, abs=tolerance)
