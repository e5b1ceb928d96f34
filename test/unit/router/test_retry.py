"""Retries: growing, jittered, within the deadline and within a budget that an outage cannot multiply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd_router.retry import Retrier, RetryConfig

FAR = 1e9


def test_without_jitter_the_waits_are_upstreams() -> None:
    retrier = Retrier(RetryConfig(jitter=0.0))
    waits = [retrier.backoff_s(attempt) for attempt in range(1, 6)]
    assert waits == pytest.approx([0.05, 0.075, 0.1125, 0.16875, 0.253125])


@given(st.integers(1, 10_000), st.integers(0, 1000))
def test_jitter_stays_within_its_factor_and_below_the_maximum(attempt: int, seed: int) -> None:
    config = RetryConfig(jitter=0.2, max_backoff_s=2.0)
    wait = Retrier(config, seed=seed).backoff_s(attempt)
    plain = min(2.0, 0.05 * 1.5 ** min(attempt - 1, 200))
    assert 0.8 * plain <= wait <= 1.2 * plain


def test_two_requests_do_not_come_back_together() -> None:
    retrier = Retrier(RetryConfig(), seed=1)
    assert len({retrier.backoff_s(3) for _ in range(20)}) == 20


def test_gives_up_after_the_last_retry_and_when_switched_off() -> None:
    retrier = Retrier(RetryConfig(max_retries=2))
    assert retrier.delay_s(2, 0.0, FAR) is not None
    assert retrier.delay_s(3, 0.0, FAR) is None
    assert Retrier(RetryConfig(enabled=False)).delay_s(1, 0.0, FAR) is None


def test_a_workers_retry_after_is_respected_and_the_deadline_more() -> None:
    retrier = Retrier(RetryConfig())
    assert retrier.delay_s(1, 0.0, deadline=10.0, retry_after_s=4.0) == 4.0
    assert retrier.delay_s(1, 8.0, deadline=10.0, retry_after_s=4.0) is None


def test_in_an_outage_the_budget_bounds_the_retries() -> None:
    retrier = Retrier(RetryConfig(budget_ratio=0.1, budget_per_s=1.0))
    allowed = 0
    for step in range(10_000):
        now = step * 0.001
        retrier.on_request()
        allowed += retrier.delay_s(1, now, FAR) is not None
    # 10 s at 1000 requests/s: a tenth of the requests, one a second, and the initial stock of ten.
    assert allowed == pytest.approx(1000 + 10 + 10, abs=2)


def test_a_quiet_router_always_has_its_stock() -> None:
    retrier = Retrier(RetryConfig(budget_per_s=2.0))
    assert [retrier.delay_s(1, 0.0, FAR) is not None for _ in range(21)].count(True) == 20
    assert retrier.delay_s(1, 0.5, FAR) is not None
