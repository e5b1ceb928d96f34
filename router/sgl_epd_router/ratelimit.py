"""Requests per second of each API key (or client): a token bucket in the form of GCRA.

A bucket is one number, the time at which it will be full again, so a bucket that is full need not be stored. The
numbers lie in a fixed table that router processes may share; two processes that pass the same bucket at the very same
moment may let one request too many through.
"""

from __future__ import annotations

import dataclasses

import xxhash

from sgl_epd.errors import RateLimitError
from sgl_epd_router.counters import CounterBoard

_PROBES = 8
_NS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class RateLimitConfig:
    """`burst` requests may come at once, then `per_s` each second."""

    per_s: float
    burst: int


class RateLimiter:
    """Open addressing over pairs (hash of the identity, full again at, in nanoseconds)."""

    def __init__(self, config: RateLimitConfig, board: CounterBoard) -> None:
        self._cells = board.rate_cells
        self._slots = len(self._cells) // 2
        self._interval = round(_NS / config.per_s)
        self._tolerance = self._interval * (config.burst - 1)
        # Salted, so that clients cannot look for identities that share a bucket.
        self._salt = board.salt

    def check(self, identity: bytes, now: float) -> None:
        """Take one request out of the bucket. Raises `RateLimitError` (429) with the time until the next one fits."""
        now_ns = round(now * _NS)
        slot = self._find(xxhash.xxh3_64_intdigest(identity, self._salt) >> 1 or 1, now_ns)
        full_at = max(self._cells[slot + 1], now_ns)
        too_early = full_at - now_ns - self._tolerance
        if too_early > 0:
            raise RateLimitError("rate limit exceeded", code="rate_limit_exceeded", retry_after_s=too_early / _NS)
        self._cells[slot + 1] = full_at + self._interval

    def _find(self, name: int, now_ns: int) -> int:
        """Index of the identity's pair; a new one takes the place of a bucket that is full, or fullest, by now."""
        cells, best, best_at = self._cells, 0, None
        for probe in range(_PROBES):
            slot = (name + probe) % self._slots * 2
            if cells[slot] == name:
                return slot
            full_at = max(cells[slot + 1], now_ns)
            if best_at is None or full_at < best_at:
                best, best_at = slot, full_at
        cells[best], cells[best + 1] = name, 0
        return best
