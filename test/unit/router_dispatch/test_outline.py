"""The outline of a body: the same JSON but for the payloads of data URIs, whatever the client has written."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd_router.outline import WHOLE, outline
from sgl_epd_router.scan import CHAT, RESPONSES

PAYLOAD = base64.b64encode(bytes(range(256)) * 20).decode()
URI = f"data:image/png;base64,{PAYLOAD}"


def restored(body: bytes) -> Any:
    """What the outline says, with the payloads put back."""
    cut = outline(body)
    text = bytes(cut.json)
    for name, payload in cut.payloads.items():
        assert text.count(name) == 1
        text = text.replace(name, bytes(payload))
    return json.loads(text)


texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [URI, "data:image/png;base64,AAAA", ";base64,", 'x";base64,' + PAYLOAD, f'{{"url":"{URI}"}}', "\\", '"']
    ),
)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(texts, st.sampled_from(["url", "image_url"])), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(documents, st.booleans(), st.sampled_from([None, 2]))
def test_nothing_but_payloads_is_cut(document: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    if b"\\ud" not in body.lower():
        assert restored(body) == json.loads(body)


def image_body(uri: str, **fields: Any) -> bytes:
    part = {"type": "image_url", "image_url": {"url": uri}}
    return json.dumps({"messages": [{"role": "user", "content": [part]}], **fields}).encode()


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_a_payload_is_cut_and_found_again(space: str) -> None:
    body = b'{"image_url":%b{"url"%b:%b"%b"}}' % (space.encode(), space.encode(), space.encode(), URI.encode())
    cut = outline(body)
    assert len(cut.json) < 200
    (payload,) = cut.payloads.values()
    assert bytes(payload) == PAYLOAD.encode()
    start = bytes(cut.json).index(b";base64,") + 8
    assert bytes(cut.resolve(memoryview(cut.json)[start:])) == PAYLOAD.encode()


@pytest.mark.parametrize(
    "body",
    [
        image_body("data:image/png;base64,AAAA"),
        json.dumps({"text": URI}).encode(),
        json.dumps({"url": "see " + URI}).encode(),
        json.dumps({"url": f'data:image/png;base64,{PAYLOAD}"'}).encode(),
        b'{"url":"data:image/png;base64,' + PAYLOAD.encode(),
    ],
    ids=["small", "not a url", "not at its start", "escaped quote", "cut off"],
)
def test_the_rest_is_kept(body: bytes) -> None:
    assert bytes(outline(body).json) == body


def test_no_client_can_write_a_placeholder() -> None:
    """What looks like one of an earlier body is an ordinary payload."""
    first = outline(image_body(URI))
    (name,) = first.payloads
    forged = memoryview(name)
    assert WHOLE.resolve(forged) is forged
    assert bytes(outline(image_body("data:image/png;base64," + name.decode())).resolve(forged)) == name


def test_scans_see_the_payload_and_not_its_placeholder() -> None:
    image, other = (
        base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\4\0\0\0\2\0" + bytes([i]) * 9000) for i in (1, 2)
    )
    uris = [f"data:image/png;base64,{data.decode()}" for data in (image, other, image)]
    scans = [CHAT.scan(image_body(uri), None) for uri in uris]
    items = [scan.media[0] for scan in scans if scan is not None]
    assert [(item.width, item.height) for item in items] == [(1024, 512)] * 3
    assert items[0].content_hash == items[2].content_hash != items[1].content_hash
    flat = json.dumps({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": uris[0]}]}]})
    responses = RESPONSES.scan(flat.encode(), None)
    assert responses is not None
    assert responses.media[0].content_hash == items[0].content_hash
