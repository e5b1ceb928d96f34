"""Writes the checkpoint folder in the form that transformers and SGLang load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from sgl_epd_srt.demo_training.recipe import IMAGE_MEAN, IMAGE_STD, MAX_PIXELS, MERGE, MIN_PIXELS, PATCH


def export(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights are stored in bfloat16: half the size, and the same values whatever dtype they are loaded in."""
    import copy

    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _patch_config(folder / "config.json")
    _patch_tokenizer_config(folder / "tokenizer_config.json")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    _write(
        folder / "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [end, tokenizer.pad_token_id],
            "pad_token_id": tokenizer.pad_token_id,
            "max_new_tokens": 64,
        },
    )
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_convert_rgb": True,
            "resample": 3,
            "rescale_factor": 1 / 255,
            "image_mean": IMAGE_MEAN,
            "image_std": IMAGE_STD,
            "min_pixels": MIN_PIXELS,
            "max_pixels": MAX_PIXELS,
            "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
            "patch_size": PATCH,
            "temporal_patch_size": 2,
            "merge_size": MERGE,
        },
    )


def _patch_tokenizer_config(path: Path) -> None:
    """The class name that every version of transformers and SGLang knows."""
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    del config["backend"]
    _write(path, config)


def _patch_config(path: Path) -> None:
    """SGLang 0.5.23 reads `vision_config.in_chans`; transformers 5 only writes `in_channels`."""
    config = json.loads(path.read_text())
    config["vision_config"]["in_chans"] = config["vision_config"]["in_channels"]
    _write(path, config)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
