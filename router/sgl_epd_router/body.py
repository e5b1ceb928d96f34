"""Reading what the router needs out of a request body, and splicing in what it must set, without rewriting the body.

A body is scanned once by msgspec; media stay where they are (`msgspec.Raw` is a view). Fields are added before the
last brace, so that a body of megabytes is sent from the buffer it was received in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

Buffer = bytes | bytearray | memoryview
_ABSENT = msgspec.Raw(b"")
_WHITESPACE = b" \t\r\n"

BOOTSTRAP_FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
ROUTER_FIELDS = ("rid", *BOOTSTRAP_FIELDS)
"""Set by the router; a client's own values are removed from the body (what a parser does with duplicates varies)."""


class MediaUrl(msgspec.Struct):
    url: msgspec.Raw = _ABSENT


class InlineAudio(msgspec.Struct):
    data: msgspec.Raw = _ABSENT


class Part(msgspec.Struct):
    """One element of a chat message's `content`."""

    type: str = ""
    text: str = ""
    image_url: MediaUrl | None = None
    video_url: MediaUrl | None = None
    audio_url: MediaUrl | None = None
    input_audio: InlineAudio | None = None


class Message(msgspec.Struct):
    role: str = ""
    content: str | list[Part] | None = None


class Peek(msgspec.Struct):
    """The fields that steer routing, loosely typed: whether a value is valid is for the worker to say."""

    model: msgspec.Raw = _ABSENT
    stream: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    rid: msgspec.Raw = _ABSENT
    priority: msgspec.Raw = _ABSENT
    request_id: msgspec.Raw = _ABSENT
    previous_response_id: msgspec.Raw = _ABSENT
    bootstrap_host: msgspec.Raw = _ABSENT
    bootstrap_port: msgspec.Raw = _ABSENT
    bootstrap_room: msgspec.Raw = _ABSENT


class ChatPeek(Peek):
    messages: list[Message] = []


class CompletionPeek(Peek):
    prompt: msgspec.Raw = _ABSENT
    echo: msgspec.Raw = _ABSENT
    logprobs: msgspec.Raw = _ABSENT


class GeneratePeek(Peek):
    text: msgspec.Raw = _ABSENT
    input_ids: msgspec.Raw = _ABSENT
    input_embeds: msgspec.Raw = _ABSENT
    image_data: msgspec.Raw = _ABSENT
    video_data: msgspec.Raw = _ABSENT
    audio_data: msgspec.Raw = _ABSENT
    sampling_params: msgspec.Raw = _ABSENT
    return_logprob: msgspec.Raw = _ABSENT


class ResponsesPart(msgspec.Struct):
    text: str = ""
    image_url: msgspec.Raw = _ABSENT


class ResponsesItem(msgspec.Struct):
    role: str = ""
    content: str | list[ResponsesPart] | None = None


class ResponsesPeek(Peek):
    """`/v1/responses`."""

    input: str | list[ResponsesItem] = ""
    instructions: str | None = None


_LENIENT = msgspec.json.Decoder(Peek)


def peek(decoder: msgspec.json.Decoder[Any], body: Buffer) -> Peek | None:
    """Scan `body`; None when it is not a JSON object.

    A field of a type that the API does not have is the worker's to refuse: then only the common fields are read.
    """
    try:
        result: Peek = decoder.decode(body)
        return result
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError):
        # msgspec is stricter than Python's parser, which the workers use: NaN, for one, is no JSON.
        return _peek_like_python(body)
    try:
        return _LENIENT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _peek_like_python(body: Buffer) -> Peek | None:
    try:
        loaded = json.loads(bytes(body).decode())
    except ValueError:
        return None
    if not isinstance(loaded, dict):
        return None
    return Peek(
        **{key: msgspec.Raw(json.dumps(loaded[key]).encode()) for key in Peek.__struct_fields__ if key in loaded}
    )


def raw_text(value: msgspec.Raw) -> str | None:
    """A JSON string's value; None for anything else."""
    if not value or bytes(memoryview(value)[:1]) != b'"':
        return None
    text: str = msgspec.json.decode(value, type=str)
    return text


def string_list(value: msgspec.Raw) -> tuple[str, ...]:
    """A JSON string, or a list of strings, as a tuple; empty for anything else."""
    try:
        found = msgspec.json.decode(value, type=str | list[str]) if value else ()
    except msgspec.DecodeError:
        return ()
    return (found,) if isinstance(found, str) else tuple(found)


def raw_int(value: msgspec.Raw, default: int) -> int:
    text = bytes(value)
    return int(text) if text.isdigit() and len(text) < 10 else default


def is_true(value: msgspec.Raw) -> bool:
    return bytes(value) == b"true"


def splice(body: Buffer, fields: bytes) -> list[Buffer]:
    """`body` with `fields` (`"name":value,...` without braces) added, as pieces that share `body`'s memory."""
    end = len(body) - 1
    while body[end] in _WHITESPACE:
        end -= 1
    before = end - 1
    while body[before] in _WHITESPACE:
        before -= 1
    comma = b"" if body[before] == ord("{") else b","
    return [memoryview(body)[:end], comma + fields + b"}"]


def without_fields(body: Buffer, names: Sequence[str]) -> bytes:
    """`body` without some top-level fields; all other values stay as they are, byte for byte."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    kept = [b"%b:%b" % (msgspec.json.encode(key), value) for key, value in fields.items() if key not in names]
    return b"{" + b",".join(kept) + b"}"
