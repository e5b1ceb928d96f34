"""Deterministic question-and-answer samples with pictures, for the demo, the tests and the measurements.

    >>> case = sample("number", seed=7)
    >>> case.images[0].size, case.question, case.answer   # doctest: +SKIP
    >>> client.chat.completions.create(messages=case.messages(), ...)   # doctest: +SKIP

`heldout` samples (the default) only show digits that the demo model never saw in training.
"""

from __future__ import annotations

import base64
import io
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from sgl_epd.demo import questions
from sgl_epd.demo.digits import Split
from sgl_epd.demo.drawing import draw_number, draw_shapes, random_size
from sgl_epd.demo.filler import filler
from sgl_epd.demo.scene import Scene

SINGLE_KINDS = (
    *(f"number.{name}" for name in questions.ABOUT_NUMBERS),
    *(f"shapes.{name}" for name in questions.ABOUT_SHAPES),
)
MULTI_KINDS = ("two_images", "three_images", "two_images.which", "three_images.which")
KINDS = (*SINGLE_KINDS, *MULTI_KINDS, "text")
_SHORT = {"number": "number.read", "shapes": "shapes.list"}


@dataclass(frozen=True)
class Sample:
    """A question about zero or more pictures, with the answer that the demo model is to give."""

    kind: str
    images: tuple[Image.Image, ...]
    scenes: tuple[Scene, ...]
    question: str
    answer: str

    def messages(self) -> list[dict[str, Any]]:
        """The body's `messages` for an OpenAI chat endpoint, pictures as PNG data URIs before the question."""
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": data_uri(image)}} for image in self.images
        ]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": self.question}]}]


def sample(kind: str, seed: int, split: Split = "heldout", context_words: int = 0) -> Sample:
    """The sample of this kind and seed: always the same one. Raises ValueError for an unknown kind.

    With `context_words`, about so many words that have nothing to do with the pictures precede the question.
    """
    case = _sample(kind, seed, split)
    if not context_words:
        return case
    context = filler(_rng(f"context/{kind}", seed, split), context_words)
    return replace(case, question=f"{context}\n{case.question}")


def _sample(kind: str, seed: int, split: Split) -> Sample:
    kind = _SHORT.get(kind, kind)
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; one of {', '.join((*_SHORT, *KINDS))}")
    rng = _rng(kind, seed, split)
    if kind == "text":
        question, answer = questions.small_talk(rng)
        return Sample(kind, (), (), question, answer)
    if kind in MULTI_KINDS:
        return _several(kind, rng, split)
    subject, name = kind.split(".")
    image, scene = picture(rng, split, subject)
    asks = questions.ABOUT_NUMBERS if subject == "number" else questions.ABOUT_SHAPES
    question, answer = asks[name](rng, scene)
    return Sample(kind, (image,), (scene,), question, answer)


def picture(rng: np.random.Generator, split: Split, subject: str) -> tuple[Image.Image, Scene]:
    """A random picture of a `number` or of `shapes`."""
    size = random_size(rng)
    return draw_number(rng, split, size) if subject == "number" else draw_shapes(rng, size)


def data_uri(image: Image.Image) -> str:
    """The picture as a lossless PNG data URI."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _several(kind: str, rng: np.random.Generator, split: Split) -> Sample:
    how_many = 2 if kind.startswith("two") else 3
    subjects = [("number", "shapes")[int(rng.integers(0, 2))] for _ in range(how_many)]
    images, scenes = zip(*(picture(rng, split, subject) for subject in subjects), strict=True)
    ask = questions.which_image if kind.endswith("which") else questions.in_order
    question, answer = ask(rng, scenes)
    return Sample(kind, images, scenes, question, answer)


def _rng(kind: str, seed: int, split: Split) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(f"{split}/{kind}".encode()), seed])
