"""Weights counted from a config against the models that transformers builds from it."""

from __future__ import annotations

import pytest
from hf import parameters, summary

from sgl_epd.planner.models import load_model
from sgl_epd.planner.models.registry import read_model

EXACT = (
    "qwen2-vl-2b",
    "qwen2-vl-7b",
    "qwen2.5-vl-3b",
    "qwen2.5-vl-7b",
    "qwen2.5-vl-72b",
    "qwen3-vl-2b",
    "qwen3-vl-8b",
    "qwen3-vl-30b-a3b",
    "llava-1.5-7b",
    "llava-v1.6-mistral-7b",
    "llava-onevision-7b",
    "llama-3.2-11b-vision",
)


@pytest.mark.parametrize("name", EXACT)
def test_weights_are_counted_as_transformers_builds_them(name: str) -> None:
    vision, language = parameters(summary(name).config)
    model = load_model(name)
    assert (model.vision.params, model.language.params) == (vision, language)


def test_internvl_in_the_layout_of_transformers() -> None:
    """InternVL3's hub repository and transformers' own conversion of it describe the same model."""
    original = summary("internvl3-8b").config
    vision, text = original["vision_config"], original["llm_config"]
    config = {
        "model_type": "internvl",
        "downsample_ratio": 0.5,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {
            "model_type": "internvl_vision",
            **{key: vision[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")},
            "num_attention_heads": vision["num_attention_heads"],
            "image_size": [448, 448],
            "patch_size": [14, 14],
            "attention_bias": True,
            "use_qk_norm": False,
            "norm_type": "layer_norm",
        },
    }
    model = read_model("internvl", config, {})
    assert (model.vision.params, model.language.params) == parameters(config)
    shipped = load_model("internvl3-8b")
    assert (shipped.vision.params, shipped.language.params) == (model.vision.params, model.language.params)
    assert shipped.media == model.media


def test_internlm2_is_a_llama_of_other_names() -> None:
    """InternLM2 has no bias in spite of its config's `bias`, and fuses q, k and v: the same count as Llama's."""
    text = {**summary("internvl2-8b").config["llm_config"], "model_type": "llama", "rope_scaling": None}
    clip = summary("llava-1.5-7b").config
    _, language = parameters({**clip, "text_config": text})
    assert load_model("internvl2-8b").language.params == language


def test_minicpm_tower_is_siglip_without_its_head() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.SiglipVisionConfig(**summary("minicpm-v-2.6").config["vision_config"], vision_use_head=False)
    with torch.device("meta"):
        tower = transformers.SiglipVisionModel(config)
    vision = load_model("minicpm-v-2.6").vision
    assert vision.tower_params == sum(weight.numel() for weight in tower.parameters())


@pytest.mark.parametrize(
    ("name", "billions"),
    [("minicpm-v-2.6", 8.10), ("internvl2-8b", 8.08), ("internvl2-26b", 25.5), ("qwen3-vl-235b-a22b", 236)],
)
def test_totals_of_the_model_cards(name: str, billions: float) -> None:
    model = load_model(name)
    assert (model.vision.params + model.language.params) / 1e9 == pytest.approx(billions, rel=0.003)


def test_active_parameters_of_a_model_with_experts() -> None:
    """30B-A3B: about 3 billion of 30 work on a token, of which the input and output embedding are 0.3 each."""
    language = load_model("qwen3-vl-30b-a3b").language
    assert language.active_params + 2 * language.vocab * language.hidden == pytest.approx(3.35e9, rel=0.01)


def test_ultravox_tower_is_whispers_encoder() -> None:
    torch = pytest.importorskip("torch")
    whisper = pytest.importorskip("transformers.models.whisper.modeling_whisper")
    transformers = pytest.importorskip("transformers")
    config = transformers.WhisperConfig(**summary("ultravox-v0.3").config["audio_config"])
    with torch.device("meta"):
        tower = whisper.WhisperEncoder(config)
    vision = load_model("ultravox-v0.3").vision
    assert vision.tower_params == sum(weight.numel() for weight in tower.parameters())
