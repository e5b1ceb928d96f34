"""Pictures crowded with digits and shapes: many more things to learn from per pixel than in the real ones."""

from __future__ import annotations

from PIL import Image

from sgl_epd.demo import drawing
from sgl_epd.demo.drawing import Rng, Size
from sgl_epd.demo.questions import pick
from sgl_epd.demo.scene import COLOURS, SHAPES, Item, Scene
from sgl_epd_srt.demo_training.recipe import CELL


def draw_crowd(rng: Rng, size: Size) -> tuple[Image.Image, Scene]:
    """Digits and shapes in the squares of a loose grid, each of its own size, none overlapping."""
    width, height = size
    pitch = rng.uniform(34, 76)
    canvas = drawing.background(rng, size)
    ink = drawing.ink(rng, canvas)
    items = []
    for row in range(int(height // pitch)):
        for column in range(int(width // pitch)):
            if rng.random() < 0.85:
                side = rng.uniform(max(28.0, 0.7 * pitch), pitch)
                x = pitch * column + rng.uniform(0, pitch - side)
                y = pitch * row + rng.uniform(0, pitch - side)
                items.append(_draw_one(rng, canvas, ink, (x, y, side)))
    return drawing.finish(rng, canvas), Scene("crowd", tuple(items))


def _draw_one(rng: Rng, canvas: drawing.Canvas, ink: drawing.Canvas, box: tuple[float, float, float]) -> Item:
    x, y, side = box
    height, width = canvas.shape[:2]
    centre = ((x + side / 2) / width, (y + side / 2) / height)
    if rng.random() < 0.65:
        digit = int(rng.integers(0, 10))
        mask = drawing.digit_mask(rng, digit, "train", round(side), augment=True)
        drawing.blend(canvas, mask, ink, round(x), round(y))
        return Item(str(digit), "", *centre)
    name, colour = pick(rng, SHAPES), pick(rng, COLOURS)
    mask = drawing.shape_mask(rng, name, round(side))
    drawing.blend(canvas, mask, drawing.shape_colour(rng, colour), round(x), round(y))
    return Item(name, colour, *centre)


def crowd_size(grid: tuple[int, int]) -> Size:
    """Just the grid's own size: these pictures are never resized."""
    return grid[0] * CELL, grid[1] * CELL
