"""Several single-sample answers become the one answer that the client asked for with `n`.

Only what must differ is rewritten: `index`, `id`, `usage`. All other values keep their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from sgl_epd_router.stream import DONE

Fields = dict[str, msgspec.Raw]

_FIELDS = msgspec.json.Decoder(Fields)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_SUMMED = ("completion_tokens", "reasoning_tokens")


class SampleMerger(Protocol):
    """For one request. Samples are numbered from 0; with a batch, each sample answers all of its prompts."""

    def whole(self, bodies: Sequence[bytes]) -> bytes:
        """One body for all."""

    def event(self, sample: int, data: bytes) -> bytes:
        """The JSON of one event of `sample`, rewritten; empty when it is held back."""

    def end(self) -> bytes:
        """The events that close the stream."""


class OpenAIMerger:
    """Chat and text completions: choices are numbered prompt by prompt, as one server does."""

    def __init__(self, n: int, answer_id: str) -> None:
        self._n = n
        self._id = _raw(answer_id)
        self._usage: dict[int, Fields] = {}

    def whole(self, bodies: Sequence[bytes]) -> bytes:
        answers = [_FIELDS.decode(body) for body in bodies]
        choices = [choice for sample, answer in enumerate(answers) for choice in self._choices(sample, answer)]
        choices.sort(key=_index)
        merged = {**answers[0], "id": self._id, "choices": _raw(choices)}
        if "usage" in merged:
            merged["usage"] = _raw(sum_usage([_FIELDS.decode(a["usage"]) for a in answers if "usage" in a]))
        return msgspec.json.encode(merged)

    def event(self, sample: int, data: bytes) -> bytes:
        fields = _FIELDS.decode(data)
        if "id" in fields:
            fields["id"] = self._id
        choices = self._choices(sample, fields)
        if not choices and bytes(fields.get("usage", b"null")) != b"null":
            self._usage[sample] = fields
            return b""
        if "choices" in fields:
            fields["choices"] = _raw(choices)
        return msgspec.json.encode(fields)

    def end(self) -> bytes:
        if not self._usage:
            return DONE
        samples = [self._usage[sample] for sample in sorted(self._usage)]
        usage = sum_usage([_FIELDS.decode(fields["usage"]) for fields in samples])
        return b"data: " + msgspec.json.encode({**samples[0], "usage": _raw(usage)}) + b"\n\n" + DONE

    def _choices(self, sample: int, fields: Fields) -> list[Fields]:
        choices = [_FIELDS.decode(raw) for raw in _LIST.decode(fields.get("choices", b"[]"))]
        return [{**choice, "index": _raw(_index(choice) * self._n + sample)} for choice in choices]


class GenerateMerger:
    """SGLang's `/generate`: a list of answers, or events with an `index`."""

    def __init__(self, n: int) -> None:
        self._n = n

    def whole(self, bodies: Sequence[bytes]) -> bytes:
        answers = [_LIST.decode(body) if body.lstrip()[:1] == b"[" else [msgspec.Raw(body)] for body in bodies]
        return msgspec.json.encode([answer for prompt in zip(*answers, strict=True) for answer in prompt])

    def event(self, sample: int, data: bytes) -> bytes:
        fields = _FIELDS.decode(data)
        return msgspec.json.encode({**fields, "index": _raw(_index(fields) * self._n + sample)})

    def end(self) -> bytes:
        return DONE


def sum_usage(usages: Sequence[Fields]) -> Fields:
    """One prompt, many completions: as SGLang's `UsageProcessor` counts them."""
    merged = dict(usages[0])
    for name in _SUMMED:
        if name in merged:
            merged[name] = _raw(sum([_int(usage.get(name)) for usage in usages]))
    merged["total_tokens"] = _raw(_int(merged.get("prompt_tokens")) + _int(merged.get("completion_tokens")))
    return merged


def _int(raw: msgspec.Raw | None) -> int:
    text = bytes(raw or b"")
    return int(text) if text.isdigit() else 0


def _index(fields: Fields) -> int:
    return _int(fields.get("index"))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
