"""The shipped checkpoint: its tokenizer, its chat layout, its picture limits, and answers from its weights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sgl_epd.demo import model_path
from sgl_epd.demo.samples import sample

transformers = pytest.importorskip("transformers")
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_path())


@pytest.fixture(scope="module")
def processor() -> Any:
    pytest.importorskip("torchvision")
    return transformers.AutoProcessor.from_pretrained(model_path())


def test_files_are_few_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in model_path().iterdir()}
    assert sizes["model.safetensors"] < 8_000_000
    assert {"config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"} <= set(sizes)


def test_config_has_the_names_that_sglang_reads() -> None:
    config = json.loads((model_path() / "config.json").read_text())
    assert config["architectures"] == ["Qwen2VLForConditionalGeneration"]
    assert config["vision_config"]["in_chans"] == 3
    text = config["text_config"]
    head_dim = text["hidden_size"] // text["num_attention_heads"]
    assert sum(text["rope_parameters"]["mrope_section"]) * 2 == head_dim


@pytest.mark.parametrize(
    "text",
    [
        "What number is written here?",
        "first image: 4071. second image: a red circle",
        "  spaces,\ttabs\n\nand lines  ",
        "Grüße, 你好, こんにちは, مرحبا, 🙂👩‍👩‍👧",
        "\u0000\u007f\u200b\ufeff",
    ],
)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_each_digit_is_a_token(tokenizer: Any) -> None:
    assert [tokenizer.decode(i) for i in tokenizer.encode("4071")] == ["4", "0", "7", "1"]


def test_chat_layout_keeps_media_and_turns_in_order(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Answer briefly."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "one "},
                {"type": "image_url", "image_url": {"url": "x"}},
                {"type": "text", "text": " two "},
                {"type": "image"},
                {"type": "video"},
                {"type": "text", "text": "?"},
            ],
        },
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "sure?"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nAnswer briefly.<|im_end|>\n"
        f"<|im_start|>user\none {IMAGE} two {IMAGE}{VIDEO}?<|im_end|>\n"
        "<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nsure?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_picture_sizes_stay_within_the_limits(processor: Any) -> None:
    from PIL import Image

    def cells(width: int, height: int) -> tuple[int, int]:
        out = processor.image_processor(images=[Image.new("RGB", (width, height))], return_tensors="pt")
        _, down, across = out["image_grid_thw"][0].tolist()
        return across // 2, down // 2

    assert cells(84, 84) == (3, 3)
    assert cells(224, 224) == (8, 8)
    assert cells(20, 20) == (3, 3), "small pictures are enlarged"
    assert cells(1920, 1080) == (10, 6), "large ones are reduced to at most 64 cells"


def test_weights_answer_heldout_samples() -> None:
    """Not the measurement (that is `python -m sgl_epd.demo.evaluate`): only that these are the trained weights."""
    pytest.importorskip("torch")
    from sgl_epd_srt.demo_training.answer import TransformersAnswerer

    answer = TransformersAnswerer(model_path())
    cases = [sample(kind, seed) for kind in ("number", "shapes", "three_images", "text") for seed in range(5)]
    right = [got.strip() == case.answer for case, got in zip(cases, answer(cases), strict=True)]
    assert sum(right) >= 18, [case.kind for case, ok in zip(cases, right, strict=True) if not ok]
