"""Answers put together from several: samples of one request, and prompt log-probabilities from the prefill worker."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from sgl_epd_router.body import GeneratePeek, peek
from sgl_epd_router.fanout import single_sample_body, single_sample_generate_body
from sgl_epd_router.merge_logprobs import CompletionMerge, LogprobMerger, map_events, merge_generate
from sgl_epd_router.merge_samples import GenerateMerger, OpenAIMerger


def dumps(value: object) -> bytes:
    return json.dumps(value).encode()


def chat(sample: int, prompts: int = 1) -> dict[str, Any]:
    choices = [{"index": i, "message": {"content": f"s{sample}p{i}"}, "finish_reason": "stop"} for i in range(prompts)]
    usage = {
        "prompt_tokens": 7 * prompts,
        "completion_tokens": 3 + sample,
        "total_tokens": 10 + sample,
        "reasoning_tokens": sample,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    return {"id": f"id{sample}", "object": "chat.completion", "created": 5 + sample, "choices": choices, "usage": usage}


def test_samples_become_choices_in_the_order_of_one_server() -> None:
    merged = json.loads(OpenAIMerger(2, "mine").whole([dumps(chat(0, 3)), dumps(chat(1, 3))]))
    texts = [choice["message"]["content"] for choice in merged["choices"]]
    assert texts == ["s0p0", "s1p0", "s0p1", "s1p1", "s0p2", "s1p2"]
    assert [choice["index"] for choice in merged["choices"]] == list(range(6))
    assert (merged["id"], merged["created"], merged["object"]) == ("mine", 5, "chat.completion")
    assert merged["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 7,
        "total_tokens": 28,
        "reasoning_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_stream_of_samples() -> None:
    merger = OpenAIMerger(3, "mine")
    event = json.loads(merger.event(2, dumps({"id": "x", "choices": [{"index": 1, "text": "a"}], "usage": None})))
    assert event == {"id": "mine", "choices": [{"index": 5, "text": "a"}], "usage": None}
    for sample in range(3):
        usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
        assert merger.event(sample, dumps({"id": "x", "choices": [], "usage": usage})) == b""
    usage_event, done, rest = merger.end().split(b"\n\n")
    assert json.loads(usage_event[6:])["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert (done, rest) == (b"data: [DONE]", b"")
    assert OpenAIMerger(2, "x").end() == b"data: [DONE]\n\n"


def test_generate_samples() -> None:
    merger = GenerateMerger(2)
    assert json.loads(merger.whole([b'{"text":"a"}', b'{"text":"b"}'])) == [{"text": "a"}, {"text": "b"}]
    batches = [b'[{"text":"p0s0"},{"text":"p1s0"}]', b'[{"text":"p0s1"},{"text":"p1s1"}]']
    assert [item["text"] for item in json.loads(merger.whole(batches))] == ["p0s0", "p0s1", "p1s0", "p1s1"]
    assert json.loads(merger.event(1, b'{"text":"a","index":2}')) == {"text": "a", "index": 5}
    assert json.loads(merger.event(1, b'{"text":"a"}')) == {"text": "a", "index": 1}


def test_bodies_for_one_sample() -> None:
    assert json.loads(single_sample_body(b'{"n":3,"rid":"r","model":"m","messages":[]}')) == {
        "model": "m",
        "messages": [],
    }
    for params, expected in (
        ({"n": 2, "temperature": 0.5}, {"temperature": 0.5}),
        ([{"n": 2}, {"n": 2, "x": 1}], [{}, {"x": 1}]),
    ):
        body = dumps({"text": "t", "sampling_params": params, "rid": "r"})
        found = peek(msgspec.json.Decoder(GeneratePeek), body)
        assert isinstance(found, GeneratePeek)
        single = single_sample_generate_body(body, found.sampling_params)
        assert json.loads(single) == {"text": "t", "sampling_params": expected}


def generate(index: int | None, prompt: list[Any], output: list[Any], **extra: Any) -> dict[str, Any]:
    item = {
        "text": "t",
        "meta_info": {"id": "d", "input_token_logprobs": prompt, "output_token_logprobs": output, **extra},
    }
    return item if index is None else {**item, "index": index}


def test_prompt_logprobs_come_from_prefill_and_the_rest_from_decode() -> None:
    prefill = generate(None, [[None, 1], [-0.5, 2]], [[-9.0, 3]], input_top_logprobs=[None, [[-1.0, 2]]])
    decode = generate(None, [], [[-9.0, 3], [-8.0, 4]], input_top_logprobs=[])
    merger = LogprobMerger(dumps(prefill), False, merge_generate)
    meta = json.loads(merger.whole(dumps(decode)))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 1], [-0.5, 2]]
    assert meta["input_top_logprobs"] == [None, [[-1.0, 2]]]
    assert meta["output_token_logprobs"] == [[-9.0, 3], [-8.0, 4]]


def test_prompt_logprobs_of_a_batch_stay_with_their_prompt() -> None:
    prefill = [generate(None, [[-1.0, i]], []) for i in range(3)]
    decode = [generate(None, [], [[-2.0, i]]) for i in range(3)]
    merged = json.loads(LogprobMerger(dumps(prefill), False, merge_generate).whole(dumps(decode)))
    assert [item["meta_info"]["input_token_logprobs"] for item in merged] == [[[-1.0, i]] for i in range(3)]
    assert all("index" not in item for item in merged)


def test_prompt_logprobs_in_every_event_of_a_stream() -> None:
    prefill = b"".join(b"data: " + dumps(generate(i, [[-1.0, i]], [])) + b"\n\n" for i in (1, 0)) + b"data: [DONE]\n\n"
    merger = LogprobMerger(prefill, True, merge_generate)
    events = b"".join(b"data: " + dumps(generate(i, [], [])) + b"\n\n" for i in (0, 1, 1)) + b"data: [DONE]\n\n"
    lines = merger.events(events).split(b"\n\n")
    found = [json.loads(line[6:])["meta_info"]["input_token_logprobs"] for line in lines[:3]]
    assert found == [[[-1.0, 0]], [[-1.0, 1]], [[-1.0, 1]]]
    assert lines[3:] == [b"data: [DONE]", b""]


def completion(tokens: list[str], index: int = 0) -> dict[str, Any]:
    numbers = [float(i) for i in range(len(tokens))]
    logprobs = {
        "tokens": tokens,
        "token_logprobs": numbers,
        "top_logprobs": [{t: 0.0} for t in tokens],
        "text_offset": [],
    }
    return {"id": "c", "choices": [{"index": index, "text": "x", "logprobs": logprobs}]}


def test_echoed_completions_begin_with_the_prompts_values() -> None:
    prefill = completion(["one", "two", "first"])
    merger = LogprobMerger(dumps(prefill), False, CompletionMerge())
    merged = json.loads(merger.whole(dumps(completion(["first", "second"]))))
    logprobs = merged["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["one", "two", "first", "second"]
    assert logprobs["token_logprobs"] == [0.0, 1.0, 0.0, 1.0]
    assert logprobs["text_offset"] == []


def test_echoed_streams_only_once_for_each_choice() -> None:
    prefill = (
        b"data: "
        + dumps(completion(["one", "first"], 1))
        + b"\n\ndata: "
        + dumps(completion(["uno", "f"], 0))
        + b"\n\n"
    )
    merger = LogprobMerger(prefill, True, CompletionMerge())
    events = b"".join(b"data: " + dumps(completion(["a"], i)) + b"\n\n" for i in (0, 1, 0))
    lines = merger.events(events).split(b"\n\n")[:3]
    tokens = [json.loads(line[6:])["choices"][0]["logprobs"]["tokens"] for line in lines]
    assert tokens == [["uno", "a"], ["one", "a"], ["a"]]


def test_other_lines_of_events_stay() -> None:
    events = b'event: x\nid: 7\ndata: {"a":1}\n\n: comment\n\ndata: [DONE]\n\n'
    assert map_events(events, lambda data: data.upper()) == events.replace(b'{"a"', b'{"A"')
