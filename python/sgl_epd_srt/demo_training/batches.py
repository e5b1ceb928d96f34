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

CELL_CLASSES = 10 + len(SHAPES) * len(COLOURS)


@dataclass
class Batch:
    """Pictures are sorted by grid: `groups` lists (pictures, cells across, cells down) in that order."""

    patches: NDArray[np.uint8]  # (patches, 3 * PATCH * PATCH), in the order of Qwen2-VL's merger
    groups: list[tuple[int, int, int]]
    cell_labels: NDArray[np.float32]  # (cells, CELL_CLASSES): which items have their centre in the cell
    ids: NDArray[np.int64] | None = None  # (rows, length)
    positions: NDArray[np.int64] | None = None  # (3, rows, length)
    segments: NDArray[np.int64] | None = None  # (rows, length): which conversation a token belongs to, 0 is padding
    image_slots: NDArray[np.int64] | None = None  # for each cell its flat place in `ids`, or -1 for none
    targets: NDArray[np.int64] | None = None  # (rows, length): the next token where it is an answer's, else -100


def patchify(image: Image.Image, grid: Grid) -> NDArray[np.uint8]:
    """Resized as Qwen2-VL's image processor does, cut in patches, 2x2 patches of a cell after one another."""
    across, down = grid
    resized = image.resize((across * CELL, down * CELL), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized).reshape(down, MERGE, PATCH, across, MERGE, PATCH, 3)
    return pixels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3 * PATCH * PATCH)


def cell_labels(scene: Scene, grid: Grid) -> NDArray[np.float32]:
    across, down = grid
    labels = np.zeros((down, across, CELL_CLASSES), dtype=np.float32)
    for item in scene.items:
        if item.colour:
            index = 10 + SHAPES.index(item.name) * len(COLOURS) + COLOURS.index(item.colour)
        else:
            index = int(item.name)
        row, column = int(item.y * down), int(item.x * across)
        labels[min(row, down - 1), min(column, across - 1), index] = 1
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
    plain = [random_picture(rng, grids[i % 3]) for i in range(count // 5)]
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
        tokens = [self._tokens(c) for c in conversations]
        rows = _pack([len(ids) for ids, _, _ in tokens])
        length = max(sum(len(tokens[i][0]) for i in row) for row in rows)
        batch.ids = np.full((len(rows), length), self._pad, dtype=np.int64)
        batch.targets = np.full((len(rows), length), -100, dtype=np.int64)
        batch.positions = np.zeros((3, len(rows), length), dtype=np.int64)
        batch.segments = np.zeros((len(rows), length), dtype=np.int64)
        slots: dict[int, list[NDArray[np.int64]]] = {}
        for r, row in enumerate(rows):
            start = 0
            for i in row:
                ids, targets, positions = tokens[i]
                here = slice(start, start + len(ids))
                batch.ids[r, here], batch.targets[r, here] = ids, targets
                batch.positions[:, r, here], batch.segments[r, here] = positions, i + 1
                at = np.flatnonzero(np.asarray(ids) == self._image_pad) + r * length + start
                slots[i] = _split(at, conversations[i].pictures)
                start += len(ids)
        places = [place for i in range(len(conversations)) for place in slots[i]]
        places += [np.full(cells_of(image), -1, dtype=np.int64) for image, _ in crowds]
        batch.image_slots = np.concatenate([places[i] for i in rank]) if rank else np.zeros(0, dtype=np.int64)
        return batch

    def _tokens(self, conversation: Conversation) -> tuple[list[int], list[int], NDArray[np.int64]]:
        """Token ids, targets (shifted by one) and the three rows of positions."""
        ids: list[int] = []
        answer: list[bool] = []
        spans: list[tuple[int, Grid]] = []

        def add(text: str, learn: bool = False) -> None:
            tokens = self._tokenizer.encode(text, add_special_tokens=False)
            ids.extend(tokens)
            answer.extend([learn] * len(tokens))

        for turn in conversation.turns:
            add(f"<|im_start|>{turn.role}\n")
            content = ""
            for part in turn.parts:
                if isinstance(part, str):
                    content += part
                    continue
                add(content + "<|vision_start|>")
                content = "<|vision_end|>"
                grid = grid_of(conversation.pictures[part][0])
                spans.append((len(ids), grid))
                ids.extend([self._image_pad] * (grid[0] * grid[1]))
                answer.extend([False] * (grid[0] * grid[1]))
            if turn.role == "assistant":
                add(content + "<|im_end|>", learn=True)
                add("\n")
            else:
                add(content + "<|im_end|>\n")
        targets = [ids[i + 1] if answer[i + 1] else -100 for i in range(len(ids) - 1)] + [-100]
        return ids, targets, rope_positions(len(ids), spans)


def _pack(lengths: list[int]) -> list[list[int]]:
    """Rows of indices, longest first, so that no row is longer than the longest or about 200 tokens."""
    room = max(200, *lengths)
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


def rope_positions(length: int, spans: list[tuple[int, Grid]]) -> NDArray[np.int64]:
    """Qwen2-VL's temporal, height and width positions; a picture advances them by its longer side."""
    out = np.zeros((3, length), dtype=np.int64)
    position = token = 0
    for start, (across, down) in spans:
        text = start - token
        out[:, token:start] = np.arange(position, position + text)
        position += text
        token = start + across * down
        out[0, start:token] = position
        out[1, start:token] = position + np.repeat(np.arange(down), across)
        out[2, start:token] = position + np.tile(np.arange(across), down)
        position += max(across, down)
    out[:, token:] = np.arange(position, position + length - token)
    return out


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
