"""Names, what is remembered, statistics; and who waits for the same item."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.cache.in_flight import InFlight, Waiter
from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.mm_cache import MMCache, namespace
from sgl_epd.cache.reservation import Found, Want
from sgl_epd.protocol.items import EmbeddingFormat, ItemMeta, Modality

HASH = bytes(range(16))
QWEN = namespace("Qwen/Qwen2-VL-2B@abc", {"min_pixels": 3136, "max_pixels": 12845056}, "bfloat16")


def cache(name: bytes = QWEN, **kwargs: int) -> MMCache:
    return MMCache(MMBlockManager(BlockLayout(8, 4, 8)), name, **kwargs)


def meta(key: bytes, rows: int = 8) -> ItemMeta:
    return ItemMeta(
        item_id="i",
        key=key,
        modality=Modality.IMAGE,
        content_hash=HASH,
        grid=(1, 4, 8),
        num_tokens=rows,
        patches=32,
        format=EmbeddingFormat(64, "bfloat16"),
        cached=False,
    )


def test_a_key_is_128_bits_and_the_same_for_the_same_item_on_every_worker() -> None:
    key = cache().key(HASH, Modality.IMAGE, {"a": 1, "b": True})
    assert len(key) == 16
    other = namespace("Qwen/Qwen2-VL-2B@abc", {"max_pixels": 12845056, "min_pixels": 3136}, "bfloat16")
    assert cache(other).key(HASH, Modality.IMAGE, {"b": True, "a": 1}) == key


def test_whatever_changes_the_embedding_changes_the_key() -> None:
    keys = {
        cache(name).key(content, modality, options)
        for name in (
            QWEN,
            namespace("Qwen/Qwen2-VL-2B@def", {"min_pixels": 3136, "max_pixels": 12845056}, "bfloat16"),
            namespace("Qwen/Qwen2-VL-2B@abc", {"min_pixels": 3136, "max_pixels": 1003520}, "bfloat16"),
            namespace("Qwen/Qwen2-VL-2B@abc", {"min_pixels": 3136, "max_pixels": 12845056}, "float32"),
        )
        for content in (HASH, HASH[::-1], HASH + b"\0")
        for modality in Modality
        for options in ({}, {"fps": 2}, {"fps": 3}, {"detail": "low"}, {"fps": True})
    }
    assert len(keys) == 4 * 3 * 3 * 5


def test_a_short_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="15 bytes"):
        cache().key(HASH[:15], Modality.IMAGE, {})


def test_grid_is_known_without_the_embedding() -> None:
    mm = cache()
    key = mm.key(HASH, Modality.IMAGE, {})
    assert mm.known(key) is None
    mm.remember(meta(key))
    assert mm.known(key) == meta(key)
    assert not mm.cached(meta(key))
    reservation = mm.blocks.reserve("r", [Want(key, 8)], 0.0, 1.0)
    mm.blocks.step(0.0)
    assert not mm.cached(meta(key))
    mm.blocks.fill(reservation, Want(key, 8))
    assert mm.cached(meta(key))


def test_what_is_known_is_bounded_and_the_oldest_use_goes_first() -> None:
    mm = cache(max_known=2)
    keys = [bytes([i]) * 16 for i in range(3)]
    mm.remember(meta(keys[0]))
    mm.remember(meta(keys[1]))
    mm.known(keys[0])
    mm.remember(meta(keys[2]))
    assert [mm.known(key) is not None for key in keys] == [True, False, True]


def test_statistics_count_items_and_tokens_by_fate() -> None:
    mm = cache()
    a, b = Want(b"a" * 16, 8), Want(b"b" * 16, 4)
    first = mm.blocks.reserve("1", [a], 0.0, 1.0)
    second = mm.blocks.reserve("2", [a, b], 0.0, 1.0)
    mm.blocks.step(0.0)
    mm.blocks.fill(first, a)
    third = mm.blocks.reserve("3", [a], 0.0, 1.0)
    mm.blocks.step(0.0)
    for reservation in (first, second, third):
        mm.count(reservation)
    assert mm.stats.items == {Found.HIT: 1, Found.JOINED: 1, Found.MISS: 2}
    assert mm.stats.tokens == {Found.HIT: 8, Found.JOINED: 8, Found.MISS: 12}
    assert mm.stats.hit_rate == 0.5


def test_hit_rate_of_nothing_is_zero() -> None:
    assert cache().stats.hit_rate == 0.0


def test_only_the_first_has_to_do_the_work() -> None:
    flight = InFlight()
    a, b, again = Waiter("1", "x"), Waiter("2", "y"), Waiter("1", "z")
    assert flight.join(b"k", a)
    assert not flight.join(b"k", b)
    assert not flight.join(b"k", again)
    assert flight.waiters(b"k") == (a, b, again)
    assert flight.finish(b"k") == (a, b, again)
    assert flight.finish(b"k") == ()
    assert flight.join(b"k", a)


def test_work_is_dropped_only_when_the_last_one_leaves() -> None:
    flight = InFlight()
    for key, request in ((b"k", "1"), (b"k", "2"), (b"l", "1")):
        flight.join(key, Waiter(request, "i"))
    assert flight.leave("1") == (b"l",)
    assert flight.leave("1") == ()
    assert flight.leave("2") == (b"k",)
    assert len(flight) == 0


@given(st.lists(st.tuples(st.sampled_from("jfl"), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_in_flight_agrees_with_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    flight = InFlight()
    model: list[tuple[bytes, Waiter]] = []
    for index, (what, k, r) in enumerate(steps):
        key, request = bytes([k]), str(r)
        if what == "j":
            waiter = Waiter(request, str(index))
            assert flight.join(key, waiter) == (key not in {each for each, _ in model})
            model.append((key, waiter))
        elif what == "f":
            assert flight.finish(key) == tuple(w for each, w in model if each == key)
            model = [entry for entry in model if entry[0] != key]
        else:
            left = [entry for entry in model if entry[1].request_id != request]
            gone = {each for each, _ in model} - {each for each, _ in left}
            assert set(flight.leave(request)) == gone
            model = left
        assert {k: flight.waiters(k) for k in {each for each, _ in model}} == {
            k: tuple(w for each, w in model if each == k) for k in {each for each, _ in model}
        }
        assert len(flight) == len({each for each, _ in model})
