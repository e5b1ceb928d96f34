"""The rate limiter: burst, then the rate, each key by itself, in a table that cannot grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import RateLimitError
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.ratelimit import RateLimitConfig, RateLimiter


def passes(limiter: RateLimiter, key: bytes, now: float) -> bool:
    try:
        limiter.check(key, now)
    except RateLimitError:
        return False
    return True


def limiter(per_s: float = 10.0, burst: int = 5, board: CounterBoard | None = None) -> RateLimiter:
    return RateLimiter(RateLimitConfig(per_s, burst), board or CounterBoard())


def test_a_burst_then_the_rate() -> None:
    limit = limiter()
    assert [passes(limit, b"k", 100.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert sum(passes(limit, b"k", 100.0 + step * 0.01) for step in range(1, 1001)) == 100


def test_the_refusal_says_when_the_next_one_fits() -> None:
    limit = limiter(per_s=2.0, burst=1)
    limit.check(b"k", 10.0)
    with pytest.raises(RateLimitError) as refused:
        limit.check(b"k", 10.1)
    assert refused.value.retry_after_s == pytest.approx(0.4)
    limit.check(b"k", 10.5)


def test_keys_do_not_share() -> None:
    limit = limiter(burst=1)
    assert all(passes(limit, b"key-%d" % n, 1.0) for n in range(500))
    assert not any(passes(limit, b"key-%d" % n, 1.0) for n in range(500))


def test_any_number_of_keys_fits_in_the_table() -> None:
    limit = limiter(burst=1)
    for n in range(50_000):
        limit.check(b"%d" % n, n * 0.001)


def test_processes_share_the_buckets() -> None:
    buffer = bytearray(CounterBoard.size(2))
    here, there = (limiter(board=CounterBoard(buffer, processes=2, mine=i)) for i in range(2))
    assert sum(passes(process, b"k", 1.0) for process in (here, there) * 10) == 5


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200), st.integers(1, 20))
def test_never_more_than_burst_plus_rate_in_any_span(gaps: list[float], burst: int) -> None:
    limit = limiter(per_s=3.0, burst=burst)
    now, passed = 50.0, []
    for gap in gaps:
        now += gap
        if passes(limit, b"k", now):
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + 3.0 * (passed[last] - passed[first]) + 1e-6
