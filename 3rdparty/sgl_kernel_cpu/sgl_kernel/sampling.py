"""The hash behind seeded sampling.

SGLang draws its Gumbel noise from MurmurHash3 (x86, 32 bit) of the sixteen bytes (seed low, seed high, position,
column), so a token depends on seed and position only. One differing bit here changes the text that a seed gives.
Definition: `sglang/kernels/ops/sampling/murmur_hash.py` (0.5.23); algorithm: Austin Appleby's MurmurHash3, which is in
the public domain.
"""

from __future__ import annotations

import torch

_KEY_BYTES = 16


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


# int32 arithmetic wraps exactly as uint32 does, and is what torch has fast kernels for.
_C1 = _signed32(0xCC9E2D51)
_C2 = _signed32(0x1B873593)
_N = _signed32(0xE6546B64)
_FINAL_1 = _signed32(0x85EBCA6B)
_FINAL_2 = _signed32(0xC2B2AE35)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch's own is arithmetic on signed integers."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _rotate_left(x: torch.Tensor, bits: int) -> torch.Tensor:
    return _shift_right(x, 32 - bits).bitwise_or_(x << bits)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _rotate_left(block * _C1, 15).mul_(_C2)
    return _rotate_left(state ^ block, 13).mul_(5).add_(_N)


def _finish(state: torch.Tensor) -> torch.Tensor:
    state = state ^ _KEY_BYTES
    state ^= _shift_right(state, 16)
    state *= _FINAL_1
    state ^= _shift_right(state, 13)
    state *= _FINAL_2
    state ^= _shift_right(state, 16)
    return state


def _words(x: torch.Tensor) -> torch.Tensor:
    """Low 32 bits of each integer, as int32."""
    if x.dtype == torch.uint64:
        x = x.view(torch.int64)
    elif x.dtype == torch.uint32:
        x = x.view(torch.int32)
    return x.to(torch.int32)


def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """Hash of every (seed, position) row with every column.

    `seed`: (n,) integers, read as 64 bits; `positions`: (n,) and `col_indices`: (m,) integers, read as 32 bits.
    Returns (n, m) uint32.
    """
    seed = seed.view(torch.int64) if seed.dtype == torch.uint64 else seed.to(torch.int64)
    state = torch.zeros(seed.shape, dtype=torch.int32)
    for block in (_words(seed), _words(seed >> 32), _words(positions)):
        state = _mix(state, block)
    return _finish(_mix(state[:, None], _words(col_indices)[None, :])).view(torch.uint32)
