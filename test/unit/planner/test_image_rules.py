"""Patches and tokens of images and videos against the processors of transformers, over many sizes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hf import summary
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import BadRequestError
from sgl_epd.planner.models import load_model, shipped_models

np = pytest.importorskip("numpy")


def sizes(count: int = 150, most: int = 5000) -> list[tuple[int, int]]:
    """(width, height): the usual ones, extreme shapes, and many at random."""
    usual = [
        (313, 234),
        (787, 444),
        (4032, 3024),
        (3024, 4032),
        (448, 448),
        (1, 1),
        (28, 4000),
        (1920, 1080),
        (336, 336),
    ]
    draw = random.Random(7)
    return usual + [(draw.randint(8, most), draw.randint(8, most)) for _ in range(count)]


def within_aspect(most: float) -> list[tuple[int, int]]:
    return [size for size in sizes() if max(size) <= most * min(size)]


def processor(kind: str, **kwargs: Any) -> Any:
    pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, kind)(**kwargs)


def qwen_processor(name: str) -> Any:
    options = dict(summary(name).preprocessor)
    if "min_pixels" in options:
        options["size"] = {"shortest_edge": options.pop("min_pixels"), "longest_edge": options.pop("max_pixels")}
    return processor("Qwen2VLImageProcessor", **options)


@pytest.mark.parametrize("name", ["qwen2-vl-7b", "qwen2.5-vl-7b", "qwen3-vl-8b"])
def test_qwen_images(name: str) -> None:
    theirs, media = qwen_processor(name), load_model(name).media
    for width, height in within_aspect(200):
        patches = theirs.get_number_of_image_patches(height, width, {})
        ours = media.image(width, height)
        assert (ours.patches, ours.embeddings) == (patches, patches // 4), (width, height)
        assert ours.prompt_tokens == ours.embeddings + 2


def test_qwen_refuses_what_its_processor_refuses() -> None:
    media = load_model("qwen2.5-vl-7b").media
    with pytest.raises(BadRequestError, match="200 times"):
        media.image(10, 2001)
    with pytest.raises(ValueError, match="aspect ratio"):
        qwen_processor("qwen2.5-vl-7b").get_number_of_image_patches(2001, 10, {})


@pytest.mark.parametrize(
    ("name", "kind"), [("qwen2.5-vl-7b", "Qwen2VLVideoProcessor"), ("qwen3-vl-8b", "Qwen3VLVideoProcessor")]
)
@pytest.mark.parametrize("frames", [4, 7, 8, 64])
def test_qwen_videos(name: str, kind: str, frames: int) -> None:
    theirs, media = processor(kind, do_sample_frames=False), load_model(name).media
    for width, height in [(320, 240), (640, 360), (64, 48), (477, 333)]:
        video = np.zeros((frames, 3, height, width), dtype=np.uint8)
        t, h, w = theirs(videos=[video], return_tensors="np")["video_grid_thw"][0]
        ours = media.video(width, height, frames)
        assert (ours.sequences, ours.patches, ours.embeddings) == (t, t * h * w, t * h * w // 4), (width, height)


@pytest.mark.parametrize("name", ["internvl2-8b", "internvl2-26b", "internvl3-8b"])
def test_internvl_tiles(name: str) -> None:
    theirs = processor(
        "GotOcr2ImageProcessor", size={"height": 448, "width": 448}, crop_to_patches=True, min_patches=1, max_patches=12
    )
    media = load_model(name).media
    for width, height in sizes():
        count = theirs.get_number_of_image_patches(height, width, {})
        ours = media.image(width, height)
        assert (ours.sequences, ours.embeddings) == (count, 256 * count), (width, height)


def test_minicpm_slices() -> None:
    """4.6 slices as 2.6 does, but its slices' sides are multiples of four patches."""
    theirs = processor("MiniCPMV4_6ImageProcessor")
    media = load_model("minicpm-v-2.6").media
    newer = dataclasses.replace(media, merge=4)
    for width, height in [size for size in sizes(40, 1600) if max(size) <= 60 * min(size)]:
        answer = theirs(images=np.zeros((height, width, 3), dtype=np.uint8), input_data_format="channels_last")
        lengths = [int(h) * int(w) for h, w in answer["target_sizes"]]
        ours = newer.image(width, height)
        assert (ours.sequences, ours.patches) == (len(lengths), sum(lengths)), (width, height)
        assert ours.patches_squared == sum(length**2 for length in lengths)
        assert media.image(width, height).sequences == ours.sequences


@pytest.mark.parametrize(
    ("name", "kind", "image_kind"),
    [
        ("llava-v1.6-mistral-7b", "LlavaNextProcessor", "LlavaNextImageProcessor"),
        ("llava-onevision-7b", "LlavaOnevisionProcessor", "LlavaOnevisionImageProcessor"),
    ],
)
def test_anyres_images(name: str, kind: str, image_kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = summary(name).config
    side, patch = config["vision_config"]["image_size"], config["vision_config"]["patch_size"]
    next_ = kind == "LlavaNextProcessor"
    images = processor(
        image_kind,
        image_grid_pinpoints=config["image_grid_pinpoints"],
        size={"shortest_edge": side} if next_ else {"height": side, "width": side},
    )
    # The counting part of the processor needs no tokenizer.
    theirs = getattr(transformers, kind).__new__(getattr(transformers, kind))
    theirs.image_processor, theirs.patch_size = images, patch
    theirs.vision_feature_select_strategy = config["vision_feature_select_strategy"]
    theirs.num_additional_image_tokens = 1 if next_ else 0
    theirs.num_image_tokens, theirs.vision_aspect_ratio = (side // patch) ** 2, config.get("vision_aspect_ratio")
    media = load_model(name).media
    for width, height in within_aspect(100):
        tokens = theirs._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"][0]
        assert media.image(width, height).embeddings == tokens, (width, height)


def test_anyres_squares_that_are_encoded() -> None:
    config = summary("llava-v1.6-mistral-7b").config
    theirs = processor(
        "LlavaNextImageProcessor",
        image_grid_pinpoints=config["image_grid_pinpoints"],
        size={"shortest_edge": 336},
        crop_size={"height": 336, "width": 336},
    )
    media = load_model("llava-v1.6-mistral-7b").media
    for width, height in sizes(10, 1500):
        pixels = theirs(images=np.zeros((height, width, 3), dtype=np.uint8), input_data_format="channels_last")
        assert media.image(width, height).sequences == len(pixels["pixel_values"][0]), (width, height)


def test_llava_is_one_square() -> None:
    size = load_model("llava-1.5-7b").media.image(4032, 3024)
    assert (size.sequences, size.patches, size.embeddings, size.prompt_tokens) == (1, 577, 576, 576)


def test_llama_tiles() -> None:
    theirs = processor("MllamaImageProcessor", size={"height": 560, "width": 560}, max_image_tiles=4)
    model = load_model("llama-3.2-11b-vision")
    for width, height in sizes(20, 2500):
        answer = theirs(images=np.zeros((height, width, 3), dtype=np.uint8), input_data_format="channels_last")
        down, across = model.media.used_tiles(width, height)
        assert down * across == answer["num_tiles"][0][0], (width, height)
        tiles = answer["pixel_values"].shape[2]
        assert model.media.image(width, height).embeddings == tiles * 1601
    assert model.media.image(100, 100).prompt_tokens == 1


@pytest.mark.parametrize(("side", "patches"), [((313, 234), 1), ((787, 444), 3), ((4032, 3024), 10)])
def test_minicpm_as_in_the_epd_paper(side: tuple[int, int], patches: int) -> None:
    """Column #Patch of table 3 in arXiv 2501.05460."""
    size = load_model("minicpm-v-2.6").media.image(*side)
    assert (size.sequences, size.embeddings) == (patches, 64 * patches)


def test_two_photos_are_the_prompt_that_the_papers_trace_shows() -> None:
    """1354 processed tokens: 22 of text, a line break after each image, and twice this."""
    assert 2 * (load_model("minicpm-v-2.6").media.image(4032, 3024).prompt_tokens + 1) + 22 == 1354


@given(
    name=st.sampled_from([name for name in shipped_models() if not name.startswith("ultravox")]),
    width=st.integers(1, 8000),
    height=st.integers(1, 8000),
    frames=st.integers(1, 40),
)
def test_sizes_make_sense(name: str, width: int, height: int, frames: int) -> None:
    media = load_model(name).media
    try:
        image, video = media.image(width, height), media.video(width, height, frames)
    except BadRequestError:
        assert max(width, height) > 200 * min(width, height)
        return
    for size in (image, video):
        assert min(size) >= 1
        assert size.patches**2 >= size.patches_squared >= size.patches**2 // size.sequences
    assert image.times(3) == image + image + image
