"""Every byte once, in order, in as few pieces as the two sides allow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.transfer.pieces import Piece, coalesce, out_of_range, split

lengths = st.lists(st.integers(0, 9), max_size=8)


def spread(data: st.DataObject, total: int) -> list[tuple[int, int]]:
    """Ranges of `total` bytes in all, that do not overlap, in any order."""
    ranges, at = [], 0
    while total:
        length = data.draw(st.integers(1, total))
        at += data.draw(st.integers(0, 2))
        ranges.append((at, length))
        at, total = at + length, total - length
    return data.draw(st.permutations(ranges))


def places(ranges: list[tuple[int, int]]) -> list[int]:
    return [place for offset, length in ranges for place in range(offset, offset + length)]


@given(st.data(), st.integers(0, 30))
def test_each_byte_goes_to_its_place(data: st.DataObject, total: int) -> None:
    local, remote = spread(data, total), spread(data, total)
    pieces = coalesce(local, remote)
    moved = [(p.local + i, p.remote + i) for p in pieces for i in range(p.length)]
    assert moved == list(zip(places(local), places(remote), strict=True))


@given(st.data(), st.integers(1, 30))
def test_no_two_pieces_could_have_been_one(data: st.DataObject, total: int) -> None:
    pieces = coalesce(spread(data, total), spread(data, total))
    for first, second in itertools.pairwise(pieces):
        assert first.local + first.length != second.local or first.remote + first.length != second.remote


def test_neighbouring_blocks_are_one_piece() -> None:
    assert coalesce([(0, 16), (16, 16), (32, 8)], [(100, 40)]) == [Piece(0, 100, 40)]
    assert coalesce([(0, 40)], [(200, 16), (100, 24)]) == [Piece(0, 200, 16), Piece(16, 100, 24)]
    assert coalesce([(0, 0), (5, 4)], [(9, 4), (0, 0)]) == [Piece(5, 9, 4)]


def test_different_totals_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="as many bytes"):
        coalesce([(0, 4)], [(0, 5)])


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(1, 40)), max_size=5), st.integers(1, 50))
def test_split_moves_the_same_bytes(raw: list[tuple[int, int, int]], most: int) -> None:
    pieces = [Piece(*each) for each in raw]
    parts = list(split(pieces, most))
    assert all(part.length <= most for part in parts)
    assert [(p.local + i, p.remote + i) for p in parts for i in range(p.length)] == [
        (p.local + i, p.remote + i) for p in pieces for i in range(p.length)
    ]


def test_out_of_range_finds_the_first_wrong_piece() -> None:
    good, wrong = Piece(0, 0, 10), Piece(5, 0, 6)
    assert out_of_range([good], 10, 10) is None
    assert out_of_range([good, wrong], 10, 10) is wrong
    assert out_of_range([good], 10, 9) is good
