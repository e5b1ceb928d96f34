"""Meaningless but readable text, so that the model learns to find the question behind a long context."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from sgl_epd.demo.questions import pick
from sgl_epd.demo.scene import COLOURS, SHAPES


def filler(rng: np.random.Generator, words: int) -> str:
    """About `words` words in sentences, with misleading colours, shapes and numbers here and there."""
    sentences, written = [], 0
    while written < words:
        length = int(rng.integers(4, 13))
        sentence = " ".join(_word(rng) for _ in range(length))
        sentences.append(sentence[0].upper() + sentence[1:] + pick(rng, (".", ".", ".", "?", "!", ";", ",")))
        written += length
    return pick(rng, (" ", " ", "\n")).join(sentences)


@cache
def _words() -> tuple[str, ...]:
    return tuple((Path(__file__).resolve().parent / "data" / "words.txt").read_text(encoding="utf-8").split())


def _word(rng: np.random.Generator) -> str:
    roll = rng.random()
    if roll < 0.90:
        return pick(rng, _words())
    if roll < 0.94:
        return f"{pick(rng, COLOURS)} {pick(rng, SHAPES)}"
    if roll < 0.97:
        return str(int(rng.integers(0, 10_000)))
    letters = rng.integers(ord("a"), ord("z"), size=int(rng.integers(2, 9)), endpoint=True)
    return "".join(chr(c) for c in letters)
