"""Samples are the same for everybody, say what was drawn, and never leak held-out digits into training."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from sgl_epd.demo import questions
from sgl_epd.demo.digits import all_digits, rows_by_label, split_indices
from sgl_epd.demo.drawing import RGB, draw_number, draw_shapes
from sgl_epd.demo.samples import KINDS, sample
from sgl_epd.demo.scene import Item, Scene


def test_importing_needs_no_engine() -> None:
    code = (
        "import sys, sgl_epd.demo, sgl_epd.demo.samples, sgl_epd.demo.evaluate, sgl_epd.demo.train;"
        "print([m for m in ('torch', 'transformers', 'sklearn', 'sglang') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_digits_are_the_published_ones() -> None:
    images, labels = all_digits()
    assert images.shape == (1797, 8, 8)
    assert images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_split_is_disjoint_complete_and_has_every_label() -> None:
    train, heldout = split_indices("train"), split_indices("heldout")
    assert not set(train) & set(heldout)
    assert sorted([*train, *heldout]) == list(range(1797))
    assert [len(rows) for rows in rows_by_label("heldout")] == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


def test_no_heldout_digit_looks_exactly_like_a_training_digit() -> None:
    images, _ = all_digits()
    trained = {images[row].tobytes() for row in split_indices("train")}
    assert not [row for row in split_indices("heldout") if images[row].tobytes() in trained]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_deterministic_by_seed(kind: str) -> None:
    one, same, other = sample(kind, 3), sample(kind, 3), sample(kind, 4)
    assert (one.question, one.answer, one.scenes) == (same.question, same.answer, same.scenes)
    assert [i.tobytes() for i in one.images] == [i.tobytes() for i in same.images]
    assert kind == "text" or [i.tobytes() for i in one.images] != [i.tobytes() for i in other.images]


def test_known_sample_stays_the_same() -> None:
    case = sample("three_images", 0)
    assert [scene.content() for scene in case.scenes] == [
        "a red star",
        "a blue circle, a blue star",
        "0",
    ]
    assert [i.size for i in case.images] == [(112, 112), (140, 84), (112, 140)]


def test_splits_differ_and_unknown_kinds_are_refused() -> None:
    assert sample("number", 1).images[0].tobytes() != sample("number", 1, "train").images[0].tobytes()
    with pytest.raises(ValueError, match="unknown kind 'cat'"):
        sample("cat", 0)


@pytest.mark.parametrize("seed", range(40))
def test_shapes_are_drawn_where_the_scene_says(seed: int) -> None:
    """The pixel at the centre of each item has its colour."""
    image, scene = draw_shapes(np.random.default_rng(seed), (160, 140))
    pixels = np.asarray(image, dtype=float)
    for item in scene.items:
        centre = pixels[int(item.y * image.height), int(item.x * image.width)]
        distance = {name: np.abs(centre - rgb).sum() for name, rgb in RGB.items()}
        assert min(distance, key=lambda name: distance[name]) == item.colour
    assert [i.x for i in scene.items] == sorted(i.x for i in scene.items)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_have_ink_at_each_digit_and_none_elsewhere(seed: int) -> None:
    image, scene = draw_number(np.random.default_rng(seed), "heldout", (200, 120))
    grey = np.asarray(image.convert("L"), dtype=float)
    ground = np.median(grey)
    inked = np.flatnonzero((np.abs(grey - ground) > 45).any(axis=0))
    first, last = scene.items[0].x * 200, scene.items[-1].x * 200
    assert inked.min() == pytest.approx(first, abs=36)
    assert inked.max() == pytest.approx(last, abs=36)
    assert len(scene.items) == 1 or scene.items[0].name != "0"


SCENE = Scene(
    "shapes",
    (
        Item("circle", "red", 0.1, 0.2),
        Item("star", "orange", 0.5, 0.8),
        Item("circle", "red", 0.9, 0.9),
    ),
)


def test_answers_follow_from_the_scene() -> None:
    assert SCENE.content() == "a red circle, an orange star, a red circle"
    seen = set()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        seen.add(questions.count(rng, SCENE))
        seen.add(questions.presence(rng, SCENE))
        seen.add(questions.colour(rng, SCENE))
    assert ("How many red circles are there?", "2") in seen
    assert ("How many shapes are there?", "3") in seen
    assert ("Is there an orange star?", "yes") in seen
    assert ("Is there a square?", "no") in seen
    assert ("What colour is the star?", "orange") in seen
    assert not [q for q, _ in seen if re.search("colour is the circle", q)], "two circles: ambiguous"


def test_place_asks_only_where_the_quarter_is_clear() -> None:
    answers = {questions.place(np.random.default_rng(seed), SCENE) for seed in range(50)}
    assert {a for _, a in answers} == {SCENE.content()}, "the star is in the middle, the circles are two"
    lone = Scene("shapes", (Item("star", "blue", 0.7, 0.2),))
    assert {questions.place(np.random.default_rng(s), lone)[1] for s in range(9)} == {"top right"}


def test_several_pictures_are_answered_in_order() -> None:
    case = sample("three_images", 11)
    wanted = ". ".join(
        f"{ordinal} image: {scene.content()}"
        for ordinal, scene in zip(("first", "second", "third"), case.scenes, strict=True)
    )
    assert case.answer == wanted


def test_messages_carry_the_same_pixels_in_order() -> None:
    case = sample("two_images", 5)
    parts = case.messages()[0]["content"]
    assert [p["type"] for p in parts] == ["image_url", "image_url", "text"]
    for part, image in zip(parts, case.images, strict=False):
        data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
        assert Image.open(io.BytesIO(data)).tobytes() == image.tobytes()
    assert parts[2]["text"] == case.question


def test_context_precedes_the_question_and_changes_nothing_else() -> None:
    plain, long = sample("shapes", 2), sample("shapes", 2, context_words=200)
    assert long.question.endswith("\n" + plain.question)
    assert 150 < len(long.question.split()) < 300
    assert (long.answer, long.images[0].tobytes()) == (plain.answer, plain.images[0].tobytes())
