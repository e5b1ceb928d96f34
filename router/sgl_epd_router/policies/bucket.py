"""`bucket`: short prompts to some workers and long ones to others, so that the short never wait behind the long.

The limits follow the traffic: recent lengths are split so that each worker's range holds the same sum of tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.policies.least_load import least_loaded
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView

_SAMPLES = 1024


class Bucket:
    name = "bucket"
    uses_load = True

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._lengths: deque[int] = deque(maxlen=_SAMPLES)
        self._limits: list[int] = []
        self._adjust_at = float("-inf")

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        length = key.prompt_tokens or len(key.text)
        self._lengths.append(length)
        if now >= self._adjust_at or len(self._limits) != len(workers) - 1:
            self._limits = equal_work_limits(self._lengths, len(workers))
            self._adjust_at = now + self._config.bucket_adjust_interval_s
        counts = [worker.requests for worker in workers]
        most, least = max(counts), min(counts)
        config = self._config
        if most - least > config.balance_abs_threshold and most > least * config.balance_rel_threshold:
            return Choice(least_loaded(workers), 0.0, "balance")
        return Choice(bisect_left(self._limits, length))


def equal_work_limits(lengths: Sequence[int], parts: int) -> list[int]:
    """`parts - 1` ascending lengths that split `lengths` into ranges of about the same sum."""
    ordered = sorted(lengths)
    sums = list(accumulate(ordered))
    return [ordered[bisect_left(sums, sums[-1] * part / parts)] for part in range(1, parts)]
