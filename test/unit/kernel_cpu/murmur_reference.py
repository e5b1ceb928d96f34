"""MurmurHash3 (x86, 32 bit) over bytes, in plain Python integers: the yardstick for the hash of seeded sampling."""

from __future__ import annotations

import struct

MASK = 0xFFFFFFFF


def _rotate(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (32 - bits))) & MASK


def _scramble(block: int) -> int:
    return _rotate(block * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK


def murmur3_32(data: bytes) -> int:
    """The published algorithm with start value 0."""
    state = 0
    whole = len(data) // 4 * 4
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        state = (_rotate(state ^ _scramble(block), 13) * 5 + 0xE6546B64) & MASK
    if data[whole:]:
        state ^= _scramble(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16


def sampling_hash(seed: int, position: int, column: int) -> int:
    """SGLang's use of it: sixteen bytes, little endian."""
    return murmur3_32(struct.pack("<QII", seed % 2**64, position % 2**32, column % 2**32))
