"""Random conversations about pictures: what the model is trained on, before any tokens or pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from sgl_epd.demo import questions
from sgl_epd.demo.drawing import draw_number, draw_shapes, random_size
from sgl_epd.demo.filler import filler
from sgl_epd.demo.questions import Answered, pick
from sgl_epd.demo.scene import Scene
from sgl_epd_srt.demo_training.recipe import CELL

Rng = np.random.Generator
Grid = tuple[int, int]  # cells across, cells down
Picture = tuple[Image.Image, Scene]

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a careful assistant that reads pictures.",
)
# Looking for what a question names is learnt slowly, so each picture of shapes is asked many such questions.
_OFTEN = ("list", "describe", *("count",) * 3, *("presence",) * 3, *("place",) * 2, *("colour",) * 2)
_LABELS = ("First image: ", "Second image: ", "Third image: ")
_LEADS = ("", "", "", "Please answer: ", "Look at this. ", "Question: ", "Now look closely. ")


Part = str | int  # text, or a picture given by its index in the conversation


@dataclass(frozen=True)
class Branch:
    """One way to go on: the rest of the user's message, then answers and further questions in turn."""

    rest: str
    answers: tuple[str, ...]
    follow_ups: tuple[str, ...] = ()  # questions after the first answer


@dataclass(frozen=True)
class Conversation:
    """Earlier messages (role, text), the opening of a user's message, and several ways to go on from there.

    Branches share the opening and do not see each other: many questions cost one look at the pictures.
    """

    earlier: tuple[tuple[str, str], ...]
    opening: tuple[Part, ...]
    branches: tuple[Branch, ...]
    pictures: tuple[Picture, ...]


def random_grid(rng: Rng) -> Grid:
    """Cells across and down of a picture."""
    width, height = random_size(rng)
    return width // CELL, height // CELL


def random_picture(rng: Rng, grid: Grid, subject: str | None = None) -> Picture:
    """A training picture of `grid` cells."""
    size = (grid[0] * CELL, grid[1] * CELL)
    if subject is None:
        subject = pick(rng, ("number", "shapes"))
    if subject == "number":
        return draw_number(rng, "train", size, augment=True)
    return draw_shapes(rng, size)


def random_conversation(rng: Rng, grids: list[Grid], how_many: int, context_words: int = 0) -> Conversation:
    """A conversation about `how_many` pictures of the given grids, with `context_words` of filler."""
    pictures = _random_pictures(rng, grids, how_many)
    scenes = [scene for _, scene in pictures]
    earlier: list[tuple[str, str]] = []
    if rng.random() < 0.25:
        earlier.append(("system", pick(rng, _SYSTEM)))
    if rng.random() < 0.05:
        question, answer = questions.small_talk(rng)
        earlier += [("user", question), ("assistant", answer)]
    context = filler(rng, context_words) + pick(rng, ("\n", "\n\n")) if context_words else ""
    opening, after = _arrange(rng, how_many, context)
    asked = ask(rng, scenes)
    if after is not None:  # the question comes before pictures, so that there is but one
        asked = asked[:1]
        opening = (asked[0][0], *after)
    branches = [_branch(rng, scenes, answered, after is None) for answered in asked]
    return Conversation(tuple(earlier), opening, tuple(branches), pictures)


def ask(rng: Rng, scenes: list[Scene]) -> list[Answered]:
    """Several random questions that suit the number and kind of the pictures."""
    if not scenes:
        return [questions.small_talk(rng) for _ in range(3)]
    if len(scenes) > 1:
        asked = [questions.in_order(rng, scenes), *(questions.which_image(rng, scenes) for _ in range(2))]
        return [asked[i] for i in rng.permutation(len(asked))]
    number = scenes[0].kind == "number"
    asks = questions.ABOUT_NUMBERS if number else questions.ABOUT_SHAPES
    often = ("read", "describe", "digit_count") if number else _OFTEN
    return [asks[often[i]](rng, scenes[0]) for i in rng.permutation(len(often))]


def _branch(rng: Rng, scenes: list[Scene], answered: Answered, with_question: bool) -> Branch:
    question, answer = answered
    follow_ups = ask(rng, scenes)[:1] if scenes and rng.random() < 0.12 else []
    rest = pick(rng, _LEADS) + question if with_question else ""
    return Branch(rest, (answer, *(a for _, a in follow_ups)), tuple(q for q, _ in follow_ups))


def _random_pictures(rng: Rng, grids: list[Grid], how_many: int) -> tuple[Picture, ...]:
    pictures = [random_picture(rng, grids[int(rng.integers(0, len(grids)))]) for _ in range(how_many)]
    if how_many > 1 and rng.random() < 0.06:
        pictures[-1] = pictures[0]  # the same picture twice
    return tuple(pictures)


def _arrange(rng: Rng, how_many: int, context: str) -> tuple[tuple[Part, ...], tuple[Part, ...] | None]:
    """The opening before the question; or nothing, and what follows the question."""
    roll = rng.random()
    images: tuple[Part, ...] = tuple(range(how_many))
    text: tuple[Part, ...] = (context,) if context else ()
    if how_many > 1 and roll < 0.12:
        return (*text, *(part for i in images for part in (_LABELS[int(i)], i)), pick(rng, ("", "\n"))), None
    if how_many and roll < 0.25 and not context:
        return (), images
    if roll < 0.5:
        return (*text, *images), None
    return (*images, *text), None
