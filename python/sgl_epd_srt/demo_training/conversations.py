"""Random conversations about pictures: what the model is trained on, before any tokens or pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from sgl_epd.demo import questions
from sgl_epd.demo.drawing import draw_number, draw_shapes
from sgl_epd.demo.filler import filler
from sgl_epd.demo.questions import Answered, pick
from sgl_epd.demo.scene import Scene
from sgl_epd_srt.demo_training.recipe import CELL, MAX_PIXELS

Rng = np.random.Generator
Grid = tuple[int, int]  # cells across, cells down
Picture = tuple[Image.Image, Scene]

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a careful assistant that reads pictures.",
)
_LABELS = ("First image: ", "Second image: ", "Third image: ")
_LEADS = ("", "", "", "Please answer: ", "Look at this. ", "Question: ", "Now look closely. ")


@dataclass(frozen=True)
class Turn:
    """One message; a picture in `parts` is given by its index in the conversation."""

    role: str
    parts: tuple[str | int, ...]


@dataclass(frozen=True)
class Conversation:
    turns: tuple[Turn, ...]
    pictures: tuple[Picture, ...]


def random_grid(rng: Rng) -> Grid:
    """Cells across and down of a picture; a few are wide or tall like photographs."""
    while True:
        most = 11 if rng.random() < 0.15 else 8
        across, down = (int(n) for n in rng.integers(3, most, size=2, endpoint=True))
        if across * down * CELL * CELL <= MAX_PIXELS:
            return across, down


def random_picture(rng: Rng, grid: Grid, subject: str | None = None) -> Picture:
    """A training picture whose size is resized to `grid` cells by the image processor."""
    across, down = grid
    dw, dh = rng.integers(-12, 13, size=2)
    size = (max(82, across * CELL + int(dw)), max(82, down * CELL + int(dh)))
    if subject is None:
        subject = pick(rng, ("number", "shapes"))
    if subject == "number":
        return draw_number(rng, "train", size, augment=True)
    return draw_shapes(rng, size)


def random_conversation(rng: Rng, grids: list[Grid], how_many: int, context_words: int = 0) -> Conversation:
    """A conversation about `how_many` pictures of the given grids, behind `context_words` of filler."""
    pictures = tuple(random_picture(rng, grids[int(rng.integers(0, len(grids)))]) for _ in range(how_many))
    scenes = [scene for _, scene in pictures]
    turns: list[Turn] = []
    if rng.random() < 0.25:
        turns.append(Turn("system", (pick(rng, _SYSTEM),)))
    if rng.random() < 0.05:
        turns += _exchange((), questions.small_talk(rng))
    question, answer = ask(rng, scenes)
    lead = filler(rng, context_words) + pick(rng, ("\n", " ", "\n\n")) if context_words else pick(rng, _LEADS)
    turns += _exchange(_arrange(rng, how_many, lead, question), (question, answer))
    while how_many and rng.random() < 0.15:
        question, answer = ask(rng, scenes)
        turns += _exchange((question,), (question, answer))
    return Conversation(tuple(turns), pictures)


def ask(rng: Rng, scenes: list[Scene]) -> Answered:
    """A random question that suits the number and kind of the pictures."""
    if not scenes:
        return questions.small_talk(rng)
    if len(scenes) > 1:
        which = rng.random() < 0.3
        return questions.which_image(rng, scenes) if which else questions.in_order(rng, scenes)
    asks = questions.ABOUT_NUMBERS if scenes[0].kind == "number" else questions.ABOUT_SHAPES
    weights = np.array([2.0 if name in ("read", "list", "count") else 1.0 for name in asks])
    chosen = int(rng.choice(len(asks), p=weights / weights.sum()))
    return list(asks.values())[chosen](rng, scenes[0])


def _exchange(parts: tuple[str | int, ...], answered: Answered) -> list[Turn]:
    question, answer = answered
    return [Turn("user", parts or (question,)), Turn("assistant", (answer,))]


def _arrange(rng: Rng, how_many: int, lead: str, question: str) -> tuple[str | int, ...]:
    """Pictures before the text, after it, or between labels."""
    roll = rng.random()
    images: tuple[str | int, ...] = tuple(range(how_many))
    if how_many > 1 and roll < 0.12:
        labelled: list[str | int] = []
        for index in range(how_many):
            labelled += [_LABELS[index], index]
        return (*labelled, lead + question)
    if roll < 0.3:
        return (lead + question, *images)
    if roll < 0.4:
        return (lead, *images, question)
    return (*images, lead + question)
