"""Goodput: the largest rate at which enough requests still meet their targets, by bisection.

A rate is tried on the same requests as every other one (`Workload` sees to that), so that attainment falls with the
rate but for a little noise, and two systems are compared under the same luck.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sgl_epd.errors import ConfigError

_MOST_DOUBLINGS = 24


@dataclasses.dataclass(frozen=True)
class Goodput:
    """`rate` passed; `failed_rate` is the lowest that did not. Every probe is kept, for the curve."""

    rate: float
    """Requests per second; 0 if not even the lowest rate tried was good enough."""
    failed_rate: float
    probes: tuple[tuple[float, float], ...]
    """(rate, attainment) in order of rate."""


def goodput(
    attainment: Callable[[float], float],
    *,
    target: float = 0.9,
    start: float = 1.0,
    precision: float = 0.02,
    least: float = 1e-3,
) -> Goodput:
    """Double or halve from `start` until the rate is between two probes, then bisect to a relative `precision`.

    Raises `ConfigError` for wrong arguments, or if no rate is too much (targets that are always met).
    """
    if not (0 < target <= 1 and start > 0 and 0 < precision < 1 and least > 0):
        raise ConfigError(f"goodput of target {target}, start {start}, precision {precision}, least rate {least}")
    probes: dict[float, float] = {}

    def good(rate: float) -> bool:
        probes[rate] = attainment(rate)
        return probes[rate] >= target

    passed, failed = _bracket(good, start, least)
    while failed - passed > precision * failed and failed > least:
        middle = (passed + failed) / 2
        passed, failed = (middle, failed) if good(middle) else (passed, middle)
    return Goodput(passed, failed, tuple(sorted(probes.items())))


def _bracket(good: Callable[[float], bool], start: float, least: float) -> tuple[float, float]:
    """(passes, fails), as near to each other as a factor of two. (0, least) if nothing passes."""
    rate = start
    if good(rate):
        for _ in range(_MOST_DOUBLINGS):
            if not good(2 * rate):
                return rate, 2 * rate
            rate *= 2
        raise ConfigError(f"{rate:g} requests per second still meet the targets: these bound nothing")
    while rate > least:
        rate = max(rate / 2, least)
        if good(rate):
            return rate, min(2 * rate, start)
    return 0.0, least
