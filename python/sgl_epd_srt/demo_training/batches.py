"""Turns conversations into padded arrays, and does so in a process beside the training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sgl_epd.demo.scene import COLOURS, SHAPES, Scene
from sgl_epd_srt.demo_training.conversations import (
    Conversation,
    Grid,
    Picture,
    random_conversation,
    random_grid,
    random_picture,
)
from sgl_epd_srt.demo_training.crowd import crowd_size, draw_crowd
from sgl_epd_srt.demo_training.recipe import CELL, MERGE, PATCH, Recipe
from sgl_epd_srt.demo_training.tokens import Tokens, Words

NAMES = 10 + len(SHAPES)  # what an item is
TINTS = len(COLOURS)  # the colour of a shape, apart from its name: so the features are apart, too
RANKS = 4  # how many items are to the left of it
QUARTERS = 4  # which quarter of the picture it is in
CELL_CLASSES = NAMES + TINTS + RANKS + QUARTERS


@dataclass
class Batch:
    """Pictures are sorted by grid: `groups` lists (pictures, cells across, cells down) in that order."""

    patches: NDArray[np.uint8]  # (patches, 3 * PATCH * PATCH), in the order of Qwen2-VL's merger
    groups: list[tuple[int, int, int]]
    cell_labels: NDArray[np.float32]  # (cells, CELL_CLASSES): what has its centre in the cell, -1 for unknown
    words: Words | None = None


def patchify(image: Image.Image, grid: Grid) -> NDArray[np.uint8]:
    """Resized as Qwen2-VL's image processor does, cut in patches, 2x2 patches of a cell after one another."""
    across, down = grid
    resized = image.resize((across * CELL, down * CELL), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized).reshape(down, MERGE, PATCH, across, MERGE, PATCH, 3)
    return pixels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3 * PATCH * PATCH)


def cell_labels(scene: Scene, grid: Grid) -> NDArray[np.float32]:
    """For each cell the items whose centre it holds: name, and in ordinary pictures rank from the left and quarter."""
    across, down = grid
    labels = np.zeros((down, across, CELL_CLASSES), dtype=np.float32)
    if scene.kind == "crowd":
        labels[..., NAMES + TINTS :] = -1
    for rank, item in enumerate(scene.items):
        cell = labels[min(int(item.y * down), down - 1), min(int(item.x * across), across - 1)]
        cell[10 + SHAPES.index(item.name) if item.colour else int(item.name)] = 1
        if item.colour:
            cell[NAMES + COLOURS.index(item.colour)] = 1
        if scene.kind != "crowd":
            cell[NAMES + TINTS + rank] = 1
            cell[NAMES + TINTS + RANKS + 2 * (item.y >= 0.5) + (item.x >= 0.5)] = 1
    return labels.reshape(-1, CELL_CLASSES)


def grid_of(image: Image.Image) -> Grid:
    """Cells of a training picture; its size never meets the processor's limits."""
    return max(3, round(image.width / CELL)), max(3, round(image.height / CELL))


def cells_of(image: Image.Image) -> int:
    across, down = grid_of(image)
    return across * down


def picture_batch(rng: np.random.Generator, count: int) -> Batch:
    """Pictures alone, mostly crowded, to train the vision tower."""
    grids = [random_grid(rng) for _ in range(3)]
    plain = [random_picture(rng, grids[i % 3]) for i in range(count * 2 // 5)]
    return _with_pictures(plain + _crowds(rng, grids, count - len(plain)))[0]


def _crowds(rng: np.random.Generator, grids: list[Grid], count: int) -> list[Picture]:
    return [draw_crowd(rng, crowd_size(grids[i % len(grids)])) for i in range(count)]


class ConversationBatcher:
    """Draws conversations and lays them out as rows of tokens."""

    def __init__(self, tokenizer: Any, recipe: Recipe) -> None:
        self._tokenizer = tokenizer
        self._image_pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self._pad = tokenizer.pad_token_id
        self._recipe = recipe

    def draw(self, rng: np.random.Generator, stage: str) -> Batch:
        """A batch for the stage `single` or `mixed`."""
        budget = self._recipe.batch_images
        grids = [random_grid(rng) for _ in range(3)]
        roll = rng.random()
        conversations: list[Conversation] = []
        if stage == "mixed" and roll < 0.12:  # long contexts, one in eight batches
            longest = int(rng.integers(20, 420))
            rows = min(budget // 3, max(4, 6000 // (longest + 60)))
            for _ in range(rows):
                words = int(rng.integers(longest // 2, longest + 1))
                conversations.append(random_conversation(rng, grids, int(rng.integers(0, 4)), words))
        else:
            while budget > 0:
                how_many = _how_many(rng, stage)
                conversations.append(random_conversation(rng, grids, how_many))
                budget -= max(1, how_many)
        return self._lay_out(conversations, _crowds(rng, grids, self._recipe.crowds))

    def _lay_out(self, conversations: list[Conversation], crowds: list[Picture]) -> Batch:
        """Packs conversations into rows; `crowds` are only looked at, and belong to no conversation."""
        pictures = [picture for c in conversations for picture in c.pictures]
        batch, rank = _with_pictures(pictures + crowds)
        told = [self._tokens(c) for c in conversations]
        rows = _pack([len(tokens.ids) for tokens in told])
        length = max(sum(len(told[i].ids) for i in row) for row in rows)
        words = Words.empty(len(rows), length, self._pad)
        places: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)] * len(told)
        for r, row in enumerate(rows):
            start = 0
            for i in row:
                words.put(told[i], r, start, i + 1)
                places[i] = told[i].image_places() + r * length + start
                start += len(told[i].ids)
        cells = [place for i, c in enumerate(conversations) for place in _split(places[i], c.pictures)]
        cells += [np.full(cells_of(image), -1, dtype=np.int64) for image, _ in crowds]
        words.image_slots = np.concatenate([np.zeros(0, dtype=np.int64), *(cells[i] for i in rank)])
        batch.words = words
        return batch

    def _tokens(self, conversation: Conversation) -> Tokens:
        tokens = Tokens(self._tokenizer, self._image_pad)
        for role, text in conversation.earlier:
            tokens.add(f"<|im_start|>{role}\n{text}<|im_end|>\n")
        tokens.add("<|im_start|>user\n")
        for part in conversation.opening:
            if isinstance(part, str):
                tokens.add(part)
            else:
                tokens.add("<|vision_start|>")
                tokens.add_picture(grid_of(conversation.pictures[part][0]))
                tokens.add("<|vision_end|>")
        for number, branch in enumerate(conversation.branches):
            tokens.branch_off(number + 1)
            for said, answer in zip((branch.rest, *branch.follow_ups), branch.answers, strict=True):
                tokens.add(f"{said}<|im_end|>\n<|im_start|>assistant\n")
                tokens.add(f"{answer}<|im_end|>", learn=True)
                tokens.add("\n<|im_start|>user\n")
        return tokens


def _pack(lengths: list[int]) -> list[list[int]]:
    """Rows of indices, longest first, so that no row is longer than the longest or 256 tokens."""
    room = max(256, *lengths)
    rows: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fit = next((r for r, free in enumerate(left) if free >= lengths[i]), None)
        if fit is None:
            rows.append([])
            left.append(room)
            fit = len(rows) - 1
        rows[fit].append(i)
        left[fit] -= lengths[i]
    return rows


def _split(at: NDArray[np.int64], pictures: tuple[Picture, ...]) -> list[NDArray[np.int64]]:
    """The places of each picture's cells."""
    ends = np.cumsum([cells_of(image) for image, _ in pictures])
    return np.split(at, ends)[:-1]


def _with_pictures(pictures: list[Picture]) -> tuple[Batch, list[int]]:
    """A batch that holds the pictures sorted by grid, and the order that sorts them."""
    grids = [grid_of(image) for image, _ in pictures]
    rank = sorted(range(len(pictures)), key=lambda i: grids[i])
    groups: list[tuple[int, int, int]] = []
    for i in rank:
        if groups and groups[-1][1:] == grids[i]:
            groups[-1] = (groups[-1][0] + 1, *grids[i])
        else:
            groups.append((1, *grids[i]))
    empty = np.zeros((0, 3 * PATCH * PATCH), dtype=np.uint8)
    patches = [patchify(pictures[i][0], grids[i]) for i in rank]
    labels = [cell_labels(pictures[i][1], grids[i]) for i in rank]
    no_labels = np.zeros((0, CELL_CLASSES), dtype=np.float32)
    return Batch(np.concatenate([empty, *patches]), groups, np.concatenate([no_labels, *labels])), rank


def _how_many(rng: np.random.Generator, stage: str) -> int:
    if stage == "single":
        return 0 if rng.random() < 0.03 else 1
    return int(rng.choice(4, p=(0.06, 0.44, 0.2, 0.3)))


def batches(tokenizer: Any, recipe: Recipe) -> Iterator[Batch]:
    """All batches of the training in order; the same ones for the same recipe."""
    batcher = ConversationBatcher(tokenizer, recipe)
    total = recipe.vision_steps + recipe.single_steps + recipe.mixed_steps
    for step in range(total):
        rng = np.random.default_rng([recipe.seed, step])
        if step < recipe.vision_steps:
            yield picture_batch(rng, recipe.vision_batch)
        else:
            single = step < recipe.vision_steps + recipe.single_steps
            yield batcher.draw(rng, "single" if single else "mixed")
