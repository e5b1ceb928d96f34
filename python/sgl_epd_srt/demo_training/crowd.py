"""Pictures crowded with digits and shapes: many more things to learn from per pixel than in the real ones."""

from __future__ import annotations

from PIL import Image

from sgl_epd.demo import drawing
from sgl_epd.demo.drawing import Rng, Size
from sgl_epd.demo.questions import pick
from sgl_epd.demo.scene import COLOURS, SHAPES, Item, Scene
from sgl_epd_srt.demo_training.recipe import CELL


def draw_crowd(rng: Rng, size: Size) -> tuple[Image.Image, Scene]:
    """Digits and shapes on every second cell."""
    width, height = size
    canvas = drawing.background(rng, size)
    ink = drawing.ink(rng, canvas)
    items = []
    for row in range(1, height // CELL - 1, 2):
        for column in range(1, width // CELL - 1, 2):
            x, y = (column + 0.5) * CELL + rng.uniform(-2, 2), (row + 0.5) * CELL + rng.uniform(-2, 2)
            items.append(_draw_one(rng, canvas, ink, x, y))
    return drawing.finish(rng, canvas), Scene("crowd", tuple(items))


def _draw_one(rng: Rng, canvas: drawing.Canvas, ink: drawing.Canvas, x: float, y: float) -> Item:
    height, width = canvas.shape[:2]
    centre = (x / width, y / height)
    if rng.random() < 0.65:
        digit, side = int(rng.integers(0, 10)), round(rng.uniform(50, 56))
        mask = drawing.digit_mask(rng, digit, "train", side, augment=True)
        drawing.blend(canvas, mask, ink, round(x - side / 2), round(y - side / 2))
        return Item(str(digit), "", *centre)
    name, colour = pick(rng, SHAPES), pick(rng, COLOURS)
    drawing.draw_shape(rng, canvas, name, colour, x, y)
    return Item(name, colour, *centre)


def crowd_size(grid: tuple[int, int]) -> Size:
    """Just the grid's own size: these pictures are never resized."""
    return grid[0] * CELL, grid[1] * CELL
