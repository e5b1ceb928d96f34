"""Mean and quantiles of endlessly many times in bounded memory.

Buckets whose widths grow with the value, as in DDSketch (Masson et al., VLDB 2019): a quantile is wrong by half a
percent at most, whatever the distribution, and digests of several workers add up exactly.
"""

from __future__ import annotations

import math

_ACCURACY = 0.005
_BASE = math.log((1 + _ACCURACY) / (1 - _ACCURACY))
_CENTRE = 1 - _ACCURACY
"""A bucket's upper end times this lies `_ACCURACY` from both of its ends."""
_LEAST = 1e-9
"""Seconds; whatever is smaller counts as 0."""


class Digest:
    """Of values that are not negative."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.low = math.inf
        self.high = 0.0
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float, count: int = 1) -> None:
        self.count += count
        self.total += value * count
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value
        if value < _LEAST:
            self._zeros += count
        else:
            bucket = math.ceil(math.log(value) / _BASE)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    def merge(self, other: Digest) -> None:
        self.count += other.count
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._zeros += other._zeros
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    @property
    def mean(self) -> float:
        """0 if there is nothing."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The smallest value that at least `share` of all do not exceed; 0 if there is nothing."""
        rank = max(1, math.ceil(share * self.count))
        seen = self._zeros
        if not self.count or seen >= rank:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                # The ends are known exactly.
                return min(max(math.exp(bucket * _BASE) * _CENTRE, self.low), self.high)
        return self.high

    def share_below(self, value: float) -> float:
        """Share of values up to `value`, as exact as the buckets are; 1 if there is nothing."""
        if not self.count:
            return 1.0
        last = math.ceil(math.log(value) / _BASE) if value >= _LEAST else -math.inf
        return (self._zeros + sum(n for bucket, n in self._buckets.items() if bucket <= last)) / self.count

    def summary(self) -> dict[str, float]:
        quantiles = {f"p{round(100 * share)}": self.quantile(share) for share in (0.5, 0.9, 0.99)}
        return {"mean": self.mean, **quantiles, "max": self.high}

    def points(self, count: int = 100) -> list[tuple[float, float]]:
        """(value, share of values up to it): the distribution function, for a plot."""
        return [(self.quantile(step / count), step / count) for step in range(1, count + 1)] if self.count else []
