"""Peeking into bodies and splicing fields into them: what a JSON parser reads afterwards is what was meant."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd_router.body import (
    ROUTER_FIELDS,
    ChatPeek,
    Peek,
    is_true,
    peek,
    raw_int,
    raw_text,
    splice,
    string_list,
    without_fields,
)

CHAT = msgspec.json.Decoder(ChatPeek)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), json_values, max_size=6)
FIELDS = b'"rid":"r","bootstrap_room":7'


def joined(parts: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(map(bytes, parts))


@given(body=objects, indent=st.sampled_from([None, 0, 2]), space=st.text("\n \t\r", max_size=3), mutable=st.booleans())
def test_spliced_fields_are_what_a_parser_reads(body: dict, indent: int | None, space: str, mutable: bool) -> None:
    text = (space + json.dumps(body, indent=indent, ensure_ascii=False) + space).encode("utf-8", "surrogatepass")
    spliced = joined(splice(bytearray(text) if mutable else text, FIELDS))
    assert json.loads(spliced) == {**body, "rid": "r", "bootstrap_room": 7}


@given(objects)
def test_a_body_in_place_is_a_view_not_a_copy(body: dict) -> None:
    text = json.dumps(body).encode()
    first, _ = splice(text, FIELDS)
    assert isinstance(first, memoryview)
    assert first.obj is text


@given(body=objects, own=st.dictionaries(st.sampled_from(ROUTER_FIELDS), json_values))
def test_a_clients_own_router_fields_are_removed_and_the_rest_kept(body: dict, own: dict) -> None:
    rest = {key: value for key, value in body.items() if key not in ROUTER_FIELDS}
    text = json.dumps({**rest, **own}).encode()
    assert json.loads(without_fields(text, ROUTER_FIELDS)) == rest


def test_removed_even_when_written_twice_or_escaped() -> None:
    body = rb'{"rid":"a","x":1.50,"r\u0069d":"b","y":"\u00e9\/","rid":"c"}'
    assert without_fields(body, ROUTER_FIELDS) == rb'{"x":1.50,"y":"\u00e9\/"}'


def test_values_keep_their_bytes() -> None:
    body = (
        rb'{ "seed": 12345678901234567890123, "t": 1e-7, "s": "\ud83d\ude00", "nested": {"b": 1,  "a": [ ]} , "rid":1}'
    )
    kept = without_fields(body, ROUTER_FIELDS)
    for value in (rb"12345678901234567890123", rb"1e-7", rb'"\ud83d\ude00"', b'{"b": 1,  "a": [ ]}'):
        assert value in kept


def test_a_chat_is_read() -> None:
    body = {
        "model": "m",
        "stream": True,
        "n": 2,
        "messages": [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "u"}}],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "unknown": {"deep": []},
    }
    found = peek(CHAT, json.dumps(body).encode())
    assert isinstance(found, ChatPeek)
    assert (raw_text(found.model), is_true(found.stream), raw_int(found.n, 1)) == ("m", True, 2)
    assert [m.role for m in found.messages] == ["system", "user", "assistant"]
    assert found.messages[2].content is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": 5, "n": 2}',
        b'{"messages": [{"role": 1}], "n": 2}',
        b'{"messages": [{"content": [{"image_url": "plain"}]}], "n": 2}',
        b'{"n": 2, "temperature": NaN}',
        b'{"n": 2, "messages": null}',
    ],
)
def test_what_only_the_worker_can_judge_is_passed_on(body: bytes) -> None:
    found = peek(CHAT, body)
    assert found is not None
    assert raw_int(found.n, 1) == 2


@pytest.mark.parametrize(
    "body", [b"", b"   ", b"null", b"[]", b'"x"', b"{", b'{"a":1}}', b"\xff\xfe", b'{"a":1} x', b"1", b"{\0}\0"]
)
def test_no_object(body: bytes) -> None:
    assert peek(CHAT, body) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    found = peek(CHAT, body)
    try:
        loaded = json.loads(body.decode())  # of bytes, Python would guess the encoding; JSON on the wire is UTF-8
    except ValueError:
        return
    assert (found is not None) == isinstance(loaded, dict)


def test_loose_values() -> None:
    raw = msgspec.Raw
    assert [is_true(raw(t)) for t in (b"true", b"false", b"1", b'"true"', b"")] == [True, False, False, False, False]
    assert [raw_int(raw(t), 1) for t in (b"3", b"-3", b"3.0", b'"3"', b"", b"99999999999")] == [3, 1, 1, 1, 1, 1]
    assert [raw_text(raw(t)) for t in (b'"a\\u0041"', b"5", b"")] == ["aA", None, None]
    assert [string_list(raw(t)) for t in (b'"a"', b'["a","b"]', b"5", b"[1]", b"")] == [("a",), ("a", "b"), (), (), ()]


def test_peek_reads_the_last_of_two_equal_keys_as_python_does() -> None:
    found = peek(msgspec.json.Decoder(Peek), b'{"stream":false,"stream":true}')
    assert found is not None
    assert is_true(found.stream)
