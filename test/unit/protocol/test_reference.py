"""References survive the trip through a URL, and nothing but a reference comes out of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import BadRequestError
from sgl_epd.protocol.items import EmbeddingFormat, ItemMeta, Modality
from sgl_epd.protocol.reference import MAX_CHARS, SCHEME, Reference, from_url, is_reference, reference, to_url

META = ItemMeta(
    item_id="r1/0",
    key=bytes(range(16)),
    modality=Modality.IMAGE,
    content_hash=bytes(16),
    grid=(1, 8, 12),
    num_tokens=24,
    patches=96,
    format=EmbeddingFormat(128, "bfloat16"),
    cached=False,
    extras={"timestamps": [0.5, 1.0]},
)
REF = reference("http://10.0.0.7:30000", META)


def changed(**changes: object) -> Reference:
    return Reference(**{**{name: getattr(REF, name) for name in REF.__struct_fields__}, **changes})


@given(
    st.text(min_size=1, max_size=64), st.binary(min_size=16, max_size=16), st.lists(st.integers(0, 2**40), max_size=3)
)
def test_round_trip(item_id: str, key: bytes, grid: list[int]) -> None:
    ref = changed(item_id=item_id, key=key, grid=tuple(grid))
    assert is_reference(to_url(ref))
    assert from_url(to_url(ref)) == ref


def test_tells_what_the_encoder_told() -> None:
    assert (REF.item_id, REF.key, REF.grid, REF.num_tokens) == (META.item_id, META.key, META.grid, META.num_tokens)
    assert (REF.encoder, REF.format, REF.extras) == ("http://10.0.0.7:30000", META.format, META.extras)


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: data.hex()))
def test_what_is_no_reference_is_a_bad_request(text: str) -> None:
    with pytest.raises(BadRequestError, match="malformed"):
        from_url(SCHEME + text)


@pytest.mark.parametrize(
    "url",
    [
        to_url(REF)[:-2],
        to_url(REF).removeprefix(SCHEME),
        to_url(changed(num_tokens=0)),
        to_url(changed(key=b"short")),
        to_url(changed(grid=(1, -8, 12))),
        to_url(changed(encoder="http://10.0.0.7:30000/flush_cache?")),
        to_url(changed(encoder="http://user@10.0.0.7")),
        to_url(changed(encoder="file:///etc/passwd")),
        to_url(changed(extras={"timestamps": [0.0] * 20_000})),
        SCHEME + "A" * (MAX_CHARS + 1),
    ],
)
def test_wrong_fields_are_refused(url: str) -> None:
    with pytest.raises(BadRequestError, match="malformed"):
        from_url(url)
