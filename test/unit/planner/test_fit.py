"""Coefficients come back from samples that were made with them; what cannot be told is said."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_epd.errors import ConfigError
from sgl_epd.planner.cost_model import DecodeCost, PrefillCost, attended_pairs, load_cost_model
from sgl_epd.planner.fit import Sample, fit, fit_stage, main, read_samples

pytest.importorskip("scipy")

BASE = load_cost_model("qwen2.5-vl-7b@h100-80g")


def prefill_samples(cost: PrefillCost, count: int, noise: float, seed: int) -> list[Sample]:
    draw = random.Random(seed)
    samples = []
    for _ in range(count):
        new, past = draw.randint(16, 8192), draw.choice([0, draw.randint(0, 8192)])
        pairs = attended_pairs(new, past)
        seconds = cost.seconds(new, pairs) * draw.uniform(1 - noise, 1 + noise)
        samples.append(Sample(stage="prefill", seconds=seconds, new=new, pairs=pairs))
    return samples


coefficient = st.floats(0.1, 10)


@settings(deadline=None, max_examples=30)
@given(coefficient, coefficient, coefficient, st.integers(0, 5))
def test_exact_samples_give_the_coefficients_back(step: float, token: float, pair: float, seed: int) -> None:
    true = PrefillCost(step_s=step * 1e-2, token_s=token * 1e-4, pair_s=pair * 1e-8)
    found, held_out = fit_stage("prefill", prefill_samples(true, 40, 0.0, seed), seed=seed)
    for new in (1, 100, 3000, 100_000):
        pairs = attended_pairs(new, 2000)
        assert PrefillCost(**found).seconds(new, pairs) == pytest.approx(true.seconds(new, pairs), rel=1e-5)
    assert held_out.max_abs < 1e-6
    assert held_out.samples == 14


def test_noise_is_shown_by_the_held_out_error() -> None:
    true = PrefillCost(step_s=0.02, token_s=1e-4, pair_s=1e-8)
    found, held_out = fit_stage("prefill", prefill_samples(true, 90, 0.05, 3))
    assert PrefillCost(**found).seconds(2000, 2e6) == pytest.approx(true.seconds(2000, 2e6), rel=0.02)
    assert 0.01 < held_out.mean_abs < 0.04
    assert held_out.max_abs < 0.08
    assert abs(held_out.bias) < held_out.mean_abs


def test_short_steps_count_as_much_as_long_ones() -> None:
    """Absolute least squares would give the constant away to please the long steps."""
    true = PrefillCost(step_s=0.02, token_s=1e-4, pair_s=1e-8)
    found, _ = fit_stage("prefill", prefill_samples(true, 90, 0.05, 4))
    assert found["step_s"] == pytest.approx(0.02, rel=0.1)


def test_no_coefficient_is_negative() -> None:
    samples = [
        Sample(stage="decode", seconds=0.01 * (1 + n % 2), context=100.0 * n + 10 * (n % 3), sequences=30.0 - n)
        for n in range(1, 25)
    ]
    found, _ = fit_stage("decode", samples)
    assert min(found.values()) >= 0


def test_only_stages_with_samples_change() -> None:
    true = PrefillCost(step_s=0.02, token_s=1e-4, pair_s=1e-8)
    result = fit(BASE, prefill_samples(true, 40, 0.01, 1), source="a test", created="now")
    assert result.prefill != BASE.prefill
    assert (result.decode, result.encode) == (BASE.decode, BASE.encode)
    assert result.provenance["prefill"].kind == "measured"
    assert result.provenance["decode"].kind == "roofline"
    assert not result.measured


def test_means_of_several_steps_are_samples_too() -> None:
    """As a histogram's sum over its count gives them."""
    true = DecodeCost(step_s=0.01, context_s=1e-7, sequence_s=1e-4)
    draw, samples = random.Random(5), []
    for _ in range(30):
        steps = [(draw.randint(100, 100_000), draw.randint(1, 64)) for _ in range(20)]
        context, sequences = (sum(values) / 20 for values in zip(*steps, strict=True))
        seconds = sum(true.seconds(*step) for step in steps) / 20
        samples.append(Sample(stage="decode", seconds=seconds, context=context, sequences=sequences))
    found, _ = fit_stage("decode", samples)
    assert DecodeCost(**found).seconds(1000, 10) == pytest.approx(true.seconds(1000, 10), rel=1e-6)


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([Sample(stage="decode", seconds=1, context=n, sequences=n) for n in range(1, 9)], "8 samples, at least 9"),
        (
            [Sample(stage="decode", seconds=1, context=100 * n, sequences=n) for n in range(1, 30)],
            "do not tell step_s, context_s, sequence_s apart",
        ),
        (
            [Sample(stage="decode", seconds=1, context=n, sequences=8) for n in range(1, 30)],
            "do not tell step_s, context_s, sequence_s apart",
        ),
        ([Sample(stage="encode", seconds=1, patches=n) for n in range(1, 30)], "have 0 for patch_squared_s"),
    ],
)
def test_samples_that_cannot_be_fitted(samples: list[Sample], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fit_stage(samples[0].stage, samples)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    true = PrefillCost(step_s=0.02, token_s=1e-4, pair_s=1e-8)
    samples, out = tmp_path / "samples.jsonl", tmp_path / "cost.json"
    samples.write_bytes(b"\n".join(msgspec.json.encode(each) for each in prefill_samples(true, 40, 0.01, 1)))
    flags = ["--samples", str(samples), "--source", "a test", "--out", str(out)]
    assert main([*flags, "--base", "qwen3-vl-8b@l4-24g"]) == 0
    assert "measured" in capsys.readouterr().out
    written = load_cost_model(str(out))
    assert written.provenance["prefill"].source == "a test"
    assert written.prefill.seconds(1000, 5e5) == pytest.approx(true.seconds(1000, 5e5), rel=0.02)
    assert main(flags) == 2
    assert "--base is needed" in capsys.readouterr().err


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text('{"stage":"decode","seconds":1,"context":3,"sequences":1}\n{"stage":"decode","seconds":0}\n')
    with pytest.raises(ConfigError, match=r"line 2: Expected `float` > 0.0"):
        read_samples(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_samples(tmp_path / "none")
