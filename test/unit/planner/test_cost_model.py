"""Formulas by hand, cost models as files, rooflines, and what the published figures give."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import ConfigError
from sgl_epd.planner import published, ship
from sgl_epd.planner.cost_model import (
    CostModel,
    DecodeCost,
    EncodeCost,
    PrefillCost,
    PreprocessCost,
    TransferCost,
    attended_pairs,
    load_cost_model,
    save_cost_model,
    shipped_cost_models,
)
from sgl_epd.planner.devices import load_device, shipped_devices
from sgl_epd.planner.models import load_model, shipped_models
from sgl_epd.planner.roofline import Efficiency, resolve_cost_model, roofline


def test_formulas() -> None:
    assert PreprocessCost(item_s=0.1, megapixel_s=0.01).seconds(2, 12) == pytest.approx(0.32)
    assert EncodeCost(step_s=1, patch_s=0.1, patch_squared_s=0.001).seconds(10, 100) == pytest.approx(2.1)
    assert PrefillCost(step_s=1, token_s=0.1, pair_s=0.001).seconds(10, 50) == pytest.approx(2.05)
    assert DecodeCost(step_s=1, context_s=0.001, sequence_s=0.1).seconds(1000, 4) == pytest.approx(2.4)
    assert TransferCost(latency_s=0.5, byte_s=1e-9).seconds(5e8) == pytest.approx(1.0)


def test_floors() -> None:
    """Up to a number of sequences a step takes as long as reading the weights."""
    cost = DecodeCost(step_s=0.1, sequence_s=0.01, floor_s=0.05)
    assert [cost.seconds(0, n) for n in (1, 5, 10)] == pytest.approx([0.15, 0.15, 0.2])


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.integers(0, 1000))
def test_chunks_attend_to_as_much_as_the_whole(chunks: list[int], past: int) -> None:
    done, pairs = past, 0.0
    for chunk in chunks:
        pairs += attended_pairs(chunk, done)
        done += chunk
    assert pairs == pytest.approx(attended_pairs(sum(chunks), past))


def test_shipped_cost_models_are_what_their_sources_give() -> None:
    made = dict(ship.shipped())
    assert set(made) <= set(shipped_cost_models())
    for name, cost in made.items():
        assert flat(load_cost_model(name)) == pytest.approx(flat(cost), rel=1e-6), name
        assert load_cost_model(name).provenance == cost.provenance


def flat(cost: CostModel) -> dict[str, float]:
    found = {}
    for stage, value in msgspec.to_builtins(cost).items():
        parts = value if isinstance(value, dict) else {"": value}
        found |= {f"{stage}.{name}": part for name, part in parts.items() if isinstance(part, float)}
    return found


def test_written_and_read_back(tmp_path: Path) -> None:
    cost = load_cost_model("internvl2-8b@a100-80g+vllm-0.6.1")
    save_cost_model(cost, tmp_path / "cost.json")
    assert load_cost_model(str(tmp_path / "cost.json")) == cost
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        save_cost_model(cost, tmp_path / "no" / "cost.json")


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    text = msgspec.json.encode(load_cost_model("internvl2-8b@a100-80g+vllm-0.6.1")).decode()
    file = tmp_path / "cost.json"
    for old, new, sentence in [
        ('"step_s":0.0', '"step_s":-1.0', r">= 0.0 - at `\$.encode.step_s`"),
        ('"step_s"', '"steps"', r"unknown field `steps`"),
        ('"tp":1', '"tp":0', r">= 1"),
    ]:
        assert old in text
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(ConfigError, match=sentence):
            load_cost_model(str(file))


def test_unknown_cost_model() -> None:
    with pytest.raises(ConfigError, match=r"no cost model 'a@b'; shipped are internvl2-26b@a100-80g.vllm-0.6.1, "):
        load_cost_model("a@b")
    for name, sentence in [("qwen", "is no cost model"), ("qwen2-vl-2b@x", "unknown device"), ("y@l4-24g", "neither")]:
        with pytest.raises(ConfigError, match=sentence):
            resolve_cost_model(name)


def test_what_nobody_measured_is_said() -> None:
    cost = resolve_cost_model("qwen3-vl-8b@l40s-48g")
    assert not cost.measured
    assert {origin.kind for origin in cost.provenance.values()} == {"roofline", "assumed"}
    assert len(cost.warnings()) == len(cost.provenance) == 7
    assert any("decode is computed from data sheets: NVIDIA L40S data sheet" in line for line in cost.warnings())


def test_roofline_by_hand() -> None:
    """Qwen2.5-VL-7B on one H100: two operations for each weight and token, and all weights read for a decode step."""
    model, device, shares = load_model("qwen2.5-vl-7b"), load_device("h100-80g"), Efficiency()
    cost = resolve_cost_model("qwen2.5-vl-7b@h100-80g")
    assert cost.prefill.token_s == pytest.approx(2 * 6.525e9 / (989.4e12 * 0.55), rel=1e-3)
    assert cost.decode.floor_s == pytest.approx(2 * 7.616e9 / (3352e9 * 0.8), rel=1e-3)
    assert cost.decode.context_s == pytest.approx(57344 / (3352e9 * 0.8), rel=1e-6)
    # 28 of 32 layers attend inside windows of 64 patches.
    assert cost.encode.patch_squared_s == pytest.approx(4 * 1280 * 4 / (989.4e12 * 0.4))
    assert roofline(model, device, efficiency=shares, created="x").encode == cost.encode


@given(
    name=st.sampled_from(shipped_models()),
    device=st.sampled_from(sorted(shipped_devices())),
    tokens=st.integers(1, 30000),
    batch=st.integers(1, 256),
    patches=st.integers(1, 50000),
)
def test_rooflines_grow_with_work_and_shrink_with_devices(
    name: str, device: str, tokens: int, batch: int, patches: int
) -> None:
    one, two = resolve_cost_model(f"{name}@{device}"), resolve_cost_model(f"{name}@{device}@2")
    assert one.prefill.seconds(tokens + 1, attended_pairs(tokens + 1, 0)) > one.prefill.seconds(
        tokens, attended_pairs(tokens, 0)
    )
    assert one.decode.seconds(batch * tokens + 1, batch) > one.decode.seconds(batch * tokens, batch)
    assert one.encode.seconds(patches + 1, patches**2) >= one.encode.seconds(patches, patches**2)
    assert two.decode.floor_s == pytest.approx(one.decode.floor_s / 2)
    assert two.prefill.pair_s == pytest.approx(one.prefill.pair_s / 2)
    assert two.prefill.step_s > one.prefill.step_s


def test_published_figures_are_explained() -> None:
    """Tables within 11 %, readings of figures within 15 %."""
    data = published.read_published()
    for anchor in data.first_token:
        rates = published.derive(data, anchor.model)
        seconds = published.amounts(anchor, load_model(anchor.model)).seconds(rates)
        allowed = 0.15 if "figure" in anchor.where else 0.11
        assert seconds == pytest.approx(anchor.seconds, rel=allowed), anchor
    for point in data.decode:
        cost = load_cost_model("minicpm-v-2.6@a100-80g+vllm-0.6.1").decode
        assert cost.seconds(0, point.batch) == pytest.approx(point.seconds, rel=0.11), point


def test_the_large_tower_runs_near_the_devices_speed_and_the_small_ones_do_not() -> None:
    data = published.read_published()
    teraflops = {name: 1e-12 / published.derive(data, name).encode for name in published.MODELS}
    assert teraflops["internvl2-26b"] > 0.4 * 312
    assert teraflops["minicpm-v-2.6"] < teraflops["internvl2-8b"] < 0.15 * 312


def test_the_residuals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.main() == 0
    assert "encode 25 TFLOP/s, prefill 176 TFLOP/s" in capsys.readouterr().out
