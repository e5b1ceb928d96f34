"""The real thing from transformers, built from a shipped config without weights or network."""

from __future__ import annotations

from typing import Any

import pytest

from sgl_epd.planner import datafile
from sgl_epd.planner.models.registry import Summary


def summary(name: str) -> Summary:
    return datafile.read(datafile.shipped("models", f"{name}.json"), Summary)


def parameters(config: dict[str, Any]) -> tuple[int, int]:
    """(vision side, language side) of the model that transformers builds from the same config."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    built = transformers.AutoConfig.for_model(**_as_transformers_wants(config))
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(built)
    sizes = {key: value.numel() for key, value in model.named_parameters()}
    vision = sum(size for key, size in sizes.items() if any(part in key for part in _VISION))
    return vision, sum(sizes.values()) - vision


_VISION = (".visual.", "vision_tower.", "vision_model.", "multi_modal_projector.", "image_newline")


def _as_transformers_wants(config: dict[str, Any]) -> dict[str, Any]:
    """What a hub config leaves to the model's code."""
    config = {key: value for key, value in config.items() if key != "torch_dtype"}
    kinds = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
    if config["model_type"] in kinds:
        nested = {"model_type", "vision_config", "tie_word_embeddings"}
        text = {key: value for key, value in config.items() if key not in nested}
        config = {key: value for key, value in config.items() if key in nested}
        config["text_config"] = {**text, "model_type": kinds[config["model_type"]]}
    return config
