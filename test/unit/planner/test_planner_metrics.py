"""Digests against exact quantiles, metrics by hand, goodput against known limits."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import ConfigError
from sgl_epd.planner.digest import Digest
from sgl_epd.planner.goodput import goodput
from sgl_epd.planner.metrics import PAPER_SLOS, Finished, Metrics, Slo, parse_slo

values = st.lists(st.floats(1e-6, 1e6) | st.just(0.0), min_size=1, max_size=200)


def digest_of(numbers: list[float]) -> Digest:
    digest = Digest()
    for number in numbers:
        digest.add(number)
    return digest


@given(values, st.floats(0, 1))
def test_quantiles_within_half_a_percent(numbers: list[float], share: float) -> None:
    exact = sorted(numbers)[max(1, math.ceil(share * len(numbers))) - 1]
    assert digest_of(numbers).quantile(share) == pytest.approx(exact, rel=0.0051, abs=1e-9)


@given(values)
def test_ends_and_mean_are_exact(numbers: list[float]) -> None:
    digest = digest_of(numbers)
    assert digest.quantile(1.0) == pytest.approx(max(numbers), rel=0.0051)
    assert (digest.low, digest.high, digest.count) == (min(numbers), max(numbers), len(numbers))
    assert digest.mean == pytest.approx(sum(numbers) / len(numbers))


@given(values, values)
def test_merged_is_as_if_counted_together(one: list[float], other: list[float]) -> None:
    merged, together = digest_of(one), digest_of(one + other)
    merged.merge(digest_of(other))
    assert [merged.quantile(s / 10) for s in range(11)] == [together.quantile(s / 10) for s in range(11)]
    assert merged.summary() == pytest.approx(together.summary())


@given(values, st.floats(1e-6, 1e6))
def test_share_below(numbers: list[float], limit: float) -> None:
    share = digest_of(numbers).share_below(limit)
    low, high = (sum(n <= limit * factor for n in numbers) / len(numbers) for factor in (0.989, 1.011))
    assert low - 1e-9 <= share <= high + 1e-9


def test_memory_is_bounded() -> None:
    rng = random.Random(1)
    digest = digest_of([rng.lognormvariate(0, 3) for _ in range(50_000)])
    assert len(digest._buckets) < 3500


def test_nothing() -> None:
    assert Digest().summary() == {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}
    assert (Digest().points(), Digest().share_below(1)) == ([], 1.0)


def test_the_distribution_function() -> None:
    points = digest_of([float(n) for n in range(1, 101)]).points(4)
    assert [share for _, share in points] == [0.25, 0.5, 0.75, 1.0]
    assert [value for value, _ in points] == pytest.approx([25, 50, 75, 100], rel=0.006)


def test_one_request() -> None:
    metrics = Metrics(slo=Slo(1.0, 0.1))
    metrics.add(Finished(at=10.0, first_token_at=11.0, done_at=12.0, output_tokens=11, waits=(("encode", 0.25),)))
    summary = metrics.summary(devices=4)
    assert summary["ttft"]["mean"] == pytest.approx(1.0)
    assert summary["tpot"]["mean"] == pytest.approx(0.1)
    assert summary["e2e"]["mean"] == pytest.approx(2.0)
    assert summary["waits"]["encode"]["max"] == 0.25
    assert summary["attainment"] == {"0.5": 0.0, "0.75": 0.0, "1": 1.0, "1.25": 1.0, "1.5": 1.0, "2": 1.0}
    assert (summary["requests_per_s"], summary["output_tokens_per_s_per_device"]) == (0.5, 11 / 2 / 4)


def test_an_answer_of_one_token_has_no_tpot() -> None:
    metrics = Metrics(slo=Slo(1.0, 0.01))
    metrics.add(Finished(0.0, 0.5, 0.5, 1))
    assert metrics.tpot.count == 0
    assert metrics.attainment() == 1.0


def test_failures_met_nothing() -> None:
    metrics = Metrics(slo=Slo(1.0, 1.0))
    metrics.add(Finished(0.0, 0.5, 1.0, 5))
    for at in (0.2, 3.0, 0.3):
        metrics.fail(at)
    assert metrics.attainment() == 0.25
    assert (metrics.requests, metrics.failed, metrics.span_s) == (4, 3, 3.0)


def test_warmup_is_by_arrival() -> None:
    metrics = Metrics(slo=Slo(1.0, 1.0), warmup=2)
    for number in (3, 0, 2, 1):
        metrics.add(Finished(number, number + 0.5, number + 1, 5), number)
    metrics.fail(0.0, 1)
    assert (metrics.finished, metrics.failed, metrics.first_at) == (2, 0, 2.0)


def test_attainment_only_at_scales_that_were_counted() -> None:
    for metrics, scale in ((Metrics(), 1.0), (Metrics(slo=Slo(1, 1)), 3.0)):
        with pytest.raises(ConfigError, match="no attainment at scale"):
            metrics.attainment(scale)


def test_slo_as_text() -> None:
    assert parse_slo("ttft=2.6,tpot=0.04") == parse_slo(" tpot=0.04, ttft=2.6") == PAPER_SLOS["minicpm-v-2.6"][4]
    for wrong in ("", "ttft=1", "ttft=1,tpot=x", "ttft=0,tpot=1", "ttft=1,tpot=1,e2e=3", "2.6,0.04"):
        with pytest.raises(ConfigError, match="is no SLO"):
            parse_slo(wrong)


@given(st.floats(0.002, 5000), st.floats(0.01, 500))
def test_goodput_finds_the_limit(limit: float, start: float) -> None:
    found = goodput(lambda rate: 1.0 if rate <= limit else 0.2, start=start)
    assert found.rate <= limit < found.failed_rate
    assert found.failed_rate - found.rate <= 0.02 * found.failed_rate
    assert [rate for rate, _ in found.probes] == sorted(rate for rate, _ in found.probes)
    assert len(found.probes) < 40


def test_goodput_of_a_system_that_is_never_good() -> None:
    found = goodput(lambda rate: 0.5)
    assert (found.rate, found.failed_rate) == (0.0, 1e-3)


def test_goodput_of_targets_that_bound_nothing() -> None:
    with pytest.raises(ConfigError, match="still meet the targets"):
        goodput(lambda rate: 1.0)
    with pytest.raises(ConfigError, match=r"goodput of target 1.5"):
        goodput(lambda rate: 1.0, target=1.5)


def test_goodput_is_a_probe_that_passed() -> None:
    """Also where attainment goes up and down."""
    rng = random.Random(3)
    found = goodput(lambda rate: max(0.0, 1.0 - rate / 50) + rng.uniform(-0.02, 0.02))
    assert dict(found.probes)[found.rate] >= 0.9 > dict(found.probes)[found.failed_rate]
