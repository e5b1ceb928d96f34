"""Which bytes go where: as few writes as the blocks on both sides allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Ranges = Sequence[tuple[int, int]]
"""(offset, length) in bytes, in the order of the data."""


class Piece(NamedTuple):
    """`length` bytes from `local` in one's own region to `remote` in the peer's."""

    local: int
    remote: int
    length: int


def coalesce(local: Ranges, remote: Ranges) -> list[Piece]:
    """The bytes of `local` in their order into `remote` in its order. Raises `ValueError` if the totals differ.

    A piece ends only where one side jumps: neighbouring ranges are joined first.
    """
    pieces: list[Piece] = []
    sources, targets = list(_joined(local)), list(_joined(remote))
    if sum(length for _, length in sources) != sum(length for _, length in targets):
        raise ValueError("as many bytes have to be read as written")
    at = to = taken = put = 0
    while at < len(sources):
        (source, source_length), (target, target_length) = sources[at], targets[to]
        length = min(source_length - taken, target_length - put)
        pieces.append(Piece(source + taken, target + put, length))
        taken, put = taken + length, put + length
        if taken == source_length:
            at, taken = at + 1, 0
        if put == target_length:
            to, put = to + 1, 0
    return pieces


def split(pieces: Sequence[Piece], most: int) -> Iterator[Piece]:
    """The same bytes in pieces of at most `most` bytes."""
    for local, remote, length in pieces:
        for done in range(0, length, most):
            yield Piece(local + done, remote + done, min(most, length - done))


def out_of_range(pieces: Sequence[Piece], local_nbytes: int, remote_nbytes: int) -> Piece | None:
    """The first piece that is not inside both regions."""
    for piece in pieces:
        local, remote, length = piece
        if min(piece) < 0 or length < 1 or local + length > local_nbytes or remote + length > remote_nbytes:
            return piece
    return None


def _joined(ranges: Ranges) -> Iterator[tuple[int, int]]:
    start = end = None
    for offset, length in ranges:
        if length == 0:
            continue
        if offset == end:
            end += length
            continue
        if start is not None and end is not None:
            yield start, end - start
        start, end = offset, offset + length
    if start is not None and end is not None:
        yield start, end - start
