"""Prompt log-probabilities come from the prefill worker, the answer from the decode worker: here they meet.

Decode has no logits of the prompt, so its answer carries empty lists where one aggregated server would have values
(`sglang/srt/disaggregation/decode.py`; SGLang's own mini_lb merges `input_token_logprobs` for the same reason).
All other values keep their bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Fields = dict[str, msgspec.Raw]

_EMPTY = frozenset({b"", b"[]", b"null"})
_FIELDS = msgspec.json.Decoder(Fields)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ONE_OR_MANY = msgspec.json.Decoder(Fields | list[Fields])
_LOGPROB_LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


class LogprobMerger:
    """For one attempt: `whole` for an answer that came at once, `events` for a stream."""

    def __init__(self, prefill: bytes, prefill_is_stream: bool, merge_one: MergeOne) -> None:
        self._prefill = _by_index(prefill, prefill_is_stream)
        self._merge_one = merge_one

    def whole(self, body: bytes) -> bytes:
        found = _ONE_OR_MANY.decode(body)
        if isinstance(found, dict):
            return msgspec.json.encode(self._merge_one(found, self._prefill))
        merged = [self._merge_one({**item, "index": _raw(i)}, self._prefill) for i, item in enumerate(found)]
        return msgspec.json.encode([{k: v for k, v in item.items() if k != "index"} for item in merged])

    def events(self, events: bytes) -> bytes:
        return map_events(events, self._event)

    def _event(self, data: bytes) -> bytes:
        return msgspec.json.encode(self._merge_one(_FIELDS.decode(data), self._prefill))


MergeOne = Callable[[Fields, dict[int, Fields]], Fields]


def merge_generate(item: Fields, prefill: dict[int, Fields]) -> Fields:
    """`/generate`: fill in the `input_*` fields of `meta_info` that decode left empty."""
    source = prefill.get(_index(item))
    if source is None or "meta_info" not in item or "meta_info" not in source:
        return item
    meta = _FIELDS.decode(item["meta_info"])
    for name, value in _FIELDS.decode(source["meta_info"]).items():
        if name.startswith("input_") and bytes(meta.get(name, b"")) in _EMPTY:
            meta[name] = value
    return {**item, "meta_info": _raw(meta)}


class CompletionMerge:
    """`/v1/completions` with `echo` and `logprobs`: the prompt's values go before the first ones of each choice."""

    def __init__(self) -> None:
        self._done: set[int] = set()

    def __call__(self, item: Fields, prefill: dict[int, Fields]) -> Fields:
        if "choices" not in item:
            return item
        choices = [self._choice(_FIELDS.decode(choice), prefill) for choice in _LIST.decode(item["choices"])]
        return {**item, "choices": _raw(choices)}

    def _choice(self, choice: Fields, prefill: dict[int, Fields]) -> Fields:
        index = _index(choice)
        source = prefill.get(index)
        mine, theirs = choice.get("logprobs"), source.get("logprobs") if source else None
        if index in self._done or not mine or not theirs or bytes(mine) in _EMPTY or bytes(theirs) in _EMPTY:
            return choice
        self._done.add(index)
        merged, prompt = _FIELDS.decode(mine), _FIELDS.decode(theirs)
        for name in _LOGPROB_LISTS:
            if bytes(merged.get(name, b"")) not in _EMPTY and bytes(prompt.get(name, b"")) not in _EMPTY:
                # Prefill has generated one token; decode's list begins with the same one.
                merged[name] = _raw(_LIST.decode(prompt[name])[:-1] + _LIST.decode(merged[name]))
        return {**choice, "logprobs": _raw(merged)}


def map_events(events: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Apply `change` to the JSON of each event; `[DONE]` and other lines stay."""
    lines = events.split(b"\n")
    for i, line in enumerate(lines):
        if line.startswith(b"data: {"):
            lines[i] = b"data: " + change(line[6:])
    return b"\n".join(lines)


def _by_index(body: bytes, is_stream: bool) -> dict[int, Fields]:
    """The prefill worker's items by index: of `/generate` its answers, of `/v1/completions` its choices."""
    items: dict[int, Fields] = {}
    if is_stream:
        found = [_FIELDS.decode(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    else:
        decoded = _ONE_OR_MANY.decode(body)
        found = [decoded] if isinstance(decoded, dict) else [{**f, "index": _raw(i)} for i, f in enumerate(decoded)]
    for item in found:
        choices = _LIST.decode(item["choices"]) if "choices" in item else ()
        for fields in map(_FIELDS.decode, choices) if choices else (item,):
            # Of a stream the first event of an index counts: it has the prompt's values.
            items.setdefault(_index(fields), fields)
    return items


def _index(fields: Fields) -> int:
    text = bytes(fields.get("index", b""))
    return int(text) if text.isdigit() else 0


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
