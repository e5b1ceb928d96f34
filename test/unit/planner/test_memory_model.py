"""What fits: against the EPD paper's tables, and rules that must hold for any model, device and request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import ConfigError
from sgl_epd.planner.devices import load_device, shipped_devices
from sgl_epd.planner.memory import GIB, Bound, MemorySettings, RequestSize, WorkerMemory, explain
from sgl_epd.planner.models import load_model, shipped_models
from sgl_epd.planner.paper_memory import compare, main
from sgl_epd.planner.stages import EP, EPD, PD, SHAPES, D, E, P, Stage, letters, parse_stages

PAPER_MODELS = ("minicpm-v-2.6", "internvl2-8b", "internvl2-26b")


def test_the_papers_tables_within_15_percent_or_with_a_reason() -> None:
    cells = list(compare())
    assert len(cells) == 69
    assert [cell.row for cell in cells if not cell.agrees and not cell.row.reason] == []
    # A reason for a cell that agrees would be a leftover.
    assert [cell.row for cell in cells if cell.agrees and cell.row.reason] == []
    assert sum(cell.agrees for cell in cells) == 60


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert "60 of 69 cells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "encode", "prefill"),
    [(m, *s) for m, s in zip(PAPER_MODELS, [(95.0, 5.0), (96.2, 3.7), (78.3, 21.6)], strict=True)],
)
def test_weights_that_a_role_saves(name: str, encode: float, prefill: float) -> None:
    """Section 4.3 of the paper, which counts the tower alone, without resampler or projector."""
    model = load_model(name)
    whole = model.vision.tower_params + model.language.params
    assert 100 * model.language.params / whole == pytest.approx(encode, abs=0.5)
    assert 100 * model.vision.tower_params / whole == pytest.approx(prefill, abs=0.3)


def test_embedding_and_kv_sizes() -> None:
    mini, large = load_model("minicpm-v-2.6"), load_model("internvl2-26b")
    photo = mini.media.image(4032, 3024)
    assert photo.embeddings * mini.row_bytes == 640 * 3584 * 2
    assert large.media.image(4032, 3024).embeddings * large.row_bytes == 13 * 256 * 6144 * 2
    assert mini.language.kv_bytes_per_token() == 56 * 1024
    assert mini.language.kv_bytes_per_token(tp=4) == 14 * 1024
    assert mini.language.kv_bytes_per_token(tp=8) == 14 * 1024, "four heads: the other devices hold copies"


def test_cross_attention_keeps_embeddings_out_of_the_prompt() -> None:
    llama = load_model("llama-3.2-11b-vision")
    request = RequestSize(20, llama.media.image(1000, 1000))
    worker = WorkerMemory(llama, load_device("a100-80g"), P)
    assert request.prompt_tokens == 21
    assert worker.kv_bytes(request) == 21 * 2 * 32 * 8 * 128 * 2 + 6404 * 2 * 8 * 8 * 128 * 2


def test_roles_hold_only_what_they_need() -> None:
    model, device = load_model("qwen2.5-vl-7b"), load_device("h100-80g")
    e, p, d, mixed = (WorkerMemory(model, device, stages) for stages in (E, P, D, EPD))
    assert e.weight_bytes + p.weight_bytes == mixed.weight_bytes
    assert p.weight_bytes == d.weight_bytes == 2 * model.language.params
    assert d.mm_cache_bytes == 0
    assert explain(e) == "E: weights 1.3 GiB, embeddings 2.0 GiB, reserved 2.0 GiB, free 74.4 GiB"


def test_what_does_not_fit() -> None:
    worker = WorkerMemory(load_model("qwen2.5-vl-72b"), load_device("a100-80g"), PD)
    assert not worker.fits
    assert worker.max_batch(RequestSize(10)).value == 0
    assert worker.kv_tokens(RequestSize(10)) == 0
    assert WorkerMemory(worker.model, worker.device, PD, tp=4).fits


def test_limits_say_what_ends_them() -> None:
    model, device = load_model("internvl2-8b"), load_device("a100-80g")
    image = model.media.image(4032, 3024)
    assert WorkerMemory(model, device, P).max_images(image, 22).bound is Bound.CONTEXT
    assert WorkerMemory(model, device, E).max_images(image, 22).bound is Bound.MEMORY
    assert WorkerMemory(model, device, P).max_batch(RequestSize(70000)).bound is Bound.CONTEXT


def test_wrong_input_is_told() -> None:
    model, device = load_model("qwen2.5-vl-7b"), load_device("l4-24g")
    with pytest.raises(ConfigError, match="28 heads: they cannot be shared by 3"):
        WorkerMemory(model, device, E, tp=3)
    with pytest.raises(ConfigError, match="at least one stage"):
        WorkerMemory(model, device, frozenset())
    with pytest.raises(ConfigError, match="beyond the context"):
        WorkerMemory(model, device, P).max_kv_share(RequestSize(200_000))
    with pytest.raises(ConfigError, match="unknown device 'a101'; known are a100-40g"):
        load_device("a101")


@pytest.mark.parametrize("stages", SHAPES)
def test_letters_there_and_back(stages: frozenset[Stage]) -> None:
    assert parse_stages(letters(stages)) == stages


def test_stages_by_role_name() -> None:
    assert parse_stages("encode") == E
    assert parse_stages("mixed") == EPD
    for wrong in ("", "X", "DE", "encod", "EE"):
        with pytest.raises(ConfigError, match="names no stages"):
            parse_stages(wrong)


workers = st.builds(
    WorkerMemory,
    model=st.sampled_from([name for name in shipped_models() if not name.startswith("ultravox")]).map(load_model),
    device=st.sampled_from(list(shipped_devices().values())),
    stages=st.sampled_from(SHAPES),
    settings=st.builds(MemorySettings, mm_cache_bytes=st.integers(0, 8 * GIB), eager_vision_attention=st.booleans()),
)


@given(workers, st.integers(1, 3000), st.integers(64, 4000), st.integers(64, 4000), st.integers(0, 500))
def test_the_largest_batch_fits_and_one_more_does_not(
    worker: WorkerMemory, text: int, width: int, height: int, output: int
) -> None:
    request = RequestSize(text, worker.model.media.image(width, height), output)
    limit = worker.max_batch(request)
    if limit.bound is Bound.CONTEXT:
        assert request.total_tokens > worker.model.max_context
        return

    def needed(count: int) -> float:
        kv = worker.kv_bytes(request) * count if worker.has_kv else 0
        return worker.activation_bytes(request, count) + kv

    assert limit.value == 0 or needed(limit.value) <= worker.free_bytes
    assert needed(limit.value + 1) > worker.free_bytes


@given(workers, st.integers(64, 2000), st.integers(64, 2000), st.floats(0.1, 0.9))
def test_more_stages_never_allow_more(worker: WorkerMemory, width: int, height: int, share: float) -> None:
    image = worker.model.media.image(width, height)
    mixed = WorkerMemory(worker.model, worker.device, EP, worker.settings)
    alone = WorkerMemory(worker.model, worker.device, P, worker.settings)
    assert mixed.max_images(image, 10, share).value <= alone.max_images(image, 10, share).value
    assert mixed.max_kv_share(RequestSize(1, image)) <= alone.max_kv_share(RequestSize(1, image))
