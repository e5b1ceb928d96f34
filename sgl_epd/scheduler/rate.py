"""How fast work gets done lately."""

from __future__ import annotations

import math


class RateMeter:
    """Work per busy second; what lies `half_life_s` of busy time back counts half.

    A ratio of two decayed sums and not a mean of ratios, so that a tiny batch counts as little as it should.
    """

    def __init__(self, half_life_s: float = 5.0) -> None:
        self._decay = math.log(2) / half_life_s
        self._work = 0.0
        self._seconds = 0.0

    @property
    def rate(self) -> float:
        """0 before the first observation."""
        return self._work / self._seconds if self._seconds else 0.0

    def observe(self, work: float, seconds: float) -> None:
        if seconds <= 0:
            return
        kept = math.exp(-self._decay * seconds)
        self._work = self._work * kept + work
        self._seconds = self._seconds * kept + seconds
