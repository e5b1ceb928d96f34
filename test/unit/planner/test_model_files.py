"""Models by name and by folder, and what is said about those that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf import summary

from sgl_epd.errors import ConfigError
from sgl_epd.planner.models import load_model, shipped_models


def folder(path: Path, config: dict[str, Any] | str, processor: dict[str, Any] | None = None) -> str:
    path.joinpath("config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if processor is not None:
        path.joinpath("preprocessor_config.json").write_text(json.dumps(processor))
    return str(path)


@pytest.mark.parametrize("name", shipped_models())
def test_a_folder_is_read_like_the_shipped_summary(name: str, tmp_path: Path) -> None:
    shipped, by_hub_name = load_model(name), load_model(summary(name).model_path)
    assert shipped == by_hub_name
    read = load_model(folder(tmp_path, summary(name).config, summary(name).preprocessor))
    assert (read.language, read.vision, read.media) == (shipped.language, shipped.vision, shipped.media)
    assert (read.max_context, read.dtype_bytes) == (shipped.max_context, shipped.dtype_bytes)


def test_the_processors_limits_are_those_of_the_folder(tmp_path: Path) -> None:
    config = summary("qwen2.5-vl-7b").config
    small = load_model(folder(tmp_path, config, {"min_pixels": 3136, "max_pixels": 1003520}))
    assert small.media.image(4032, 3024).embeddings == 41 * 30
    assert load_model("qwen2.5-vl-7b").media.image(4032, 3024).embeddings == 144 * 108


def test_single_precision_weights(tmp_path: Path) -> None:
    model = load_model(folder(tmp_path, {**summary("qwen2-vl-2b").config, "torch_dtype": "float32"}))
    assert model.encoder_bytes == 4 * model.vision.params


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"'qwen9' is neither a folder .* shipped are internvl2-26b, "):
        load_model("qwen9")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "llama"}, "is a 'llama' model, which is text only or of a family"),
        ({"model_type": "qwen2_5_vl", "hidden_size": 1}, "has no vision_config: it has no vision part"),
        ({"model_type": "qwen2_vl", "vision_config": {}}, "has no hidden_size"),
        ({"model_type": "llava_next", "text_config": {}, "vision_config": {}}, "has no hidden_size"),
        ("{", "is not what it should be"),
        ("[1]", "is not what it should be"),
    ],
)
def test_configs_that_cannot_be_read(config: dict[str, Any] | str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_model(folder(tmp_path, config))


def test_a_config_with_impossible_sizes(tmp_path: Path) -> None:
    config = summary("qwen2.5-vl-7b").config
    for wrong in (0, -3, "many", 1.5, True):
        with pytest.raises(ConfigError, match="hidden_size in the model's config must be a whole number above 0"):
            load_model(folder(tmp_path, {**config, "hidden_size": wrong}))


def test_a_config_that_lacks_what_its_family_needs(tmp_path: Path) -> None:
    config = {key: value for key, value in summary("llava-v1.6-mistral-7b").config.items() if "pinpoints" not in key}
    with pytest.raises(ConfigError, match=r"not one of a llava_next model \(KeyError: 'image_grid_pinpoints'\)"):
        load_model(folder(tmp_path, config))


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.json cannot be read: No such file"):
        load_model(str(tmp_path))
