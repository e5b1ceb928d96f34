"""Draws numbers from real handwritten digits, and coloured shapes, on varied backgrounds.

Pictures measure whole cells (28 pixels, what one token of the language model covers), and each digit or shape is
centred on a cell, give or take two pixels, at about two cells' size. That keeps the task small enough for a model of a
few megabytes that trains on a CPU in well under an hour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from sgl_epd.demo.digits import Split, all_digits, rows_by_label
from sgl_epd.demo.scene import COLOURS, SHAPES, Item, Scene

Rng = np.random.Generator
Size = tuple[int, int]  # width, height in pixels
Canvas = NDArray[np.float32]  # (height, width, 3), or one colour, or a mask

CELL = 28
CELLS_ACROSS, CELLS_DOWN = (4, 8), (3, 5)  # fewest and most
MOST_ITEMS = 3  # digits or shapes in a picture
_STEP = 2  # cells from one item to the next
_WANDER = 2.0  # pixels by which an item may be off the centre of its cell
RGB = {
    "red": (214, 38, 38),
    "green": (44, 156, 62),
    "blue": (44, 84, 208),
    "yellow": (240, 210, 40),
    "purple": (140, 52, 166),
    "orange": (244, 132, 24),
}
_OVERSAMPLE = 4  # shapes are drawn larger and reduced, for smooth edges


def random_size(rng: Rng) -> Size:
    """Width and height of a picture."""
    across = rng.integers(*CELLS_ACROSS, endpoint=True)
    down = rng.integers(*CELLS_DOWN, endpoint=True)
    return int(across) * CELL, int(down) * CELL


def draw_number(rng: Rng, split: Split, size: Size, augment: bool = False) -> tuple[Image.Image, Scene]:
    """A number of 1 to 3 digits without leading zeros. `augment` distorts digits further, for training."""
    count = int(rng.integers(1, _most(size), endpoint=True))
    digits = [int(d) for d in rng.integers(0, 10, size=count)]
    if count > 1 and digits[0] == 0:
        digits[0] = int(rng.integers(1, 10))
    first = int(rng.integers(1, _cells(size[0]) - 2 - _STEP * (count - 1), endpoint=True))
    row = int(rng.integers(1, _cells(size[1]) - 2, endpoint=True))
    canvas = background(rng, size)
    pen = ink(rng, canvas)
    side = round(rng.uniform(50, 56))
    items = []
    for index, digit in enumerate(digits):
        x, y = _centre(rng, first + _STEP * index, row)
        mask = digit_mask(rng, digit, split, side, augment)
        blend(canvas, mask, pen, round(x - side / 2), round(y - side / 2))
        items.append(Item(str(digit), "", x / size[0], y / size[1]))
    return finish(rng, canvas), Scene("number", tuple(items))


def draw_shapes(rng: Rng, size: Size) -> tuple[Image.Image, Scene]:
    """One to three coloured shapes that do not overlap, from left to right."""
    columns = _columns(rng, _cells(size[0]), int(rng.integers(1, _most(size), endpoint=True)))
    palette = [(str(rng.choice(SHAPES)), str(rng.choice(COLOURS))) for _ in columns]
    if rng.random() < 0.4:  # repeat a kind often, so that counting has something to count
        palette = [palette[int(rng.integers(0, 2))] if len(palette) > 1 else p for p in palette]
    canvas = background(rng, size)
    items = []
    for column, (name, colour) in zip(columns, palette, strict=True):
        x, y = _centre(rng, column, int(rng.integers(1, _cells(size[1]) - 2, endpoint=True)))
        draw_shape(rng, canvas, name, colour, x, y)
        items.append(Item(name, colour, x / size[0], y / size[1]))
    return finish(rng, canvas), Scene("shapes", tuple(items))


def draw_shape(rng: Rng, canvas: Canvas, name: str, colour: str, x: float, y: float) -> None:
    """One shape of 42 to 54 pixels, centred at x, y."""
    side = round(rng.uniform(42, 54))
    blend(canvas, shape_mask(rng, name, side), shape_colour(rng, colour), round(x - side / 2), round(y - side / 2))


def _cells(pixels: int) -> int:
    return pixels // CELL


def _most(size: Size) -> int:
    """How many items fit side by side, two cells each, with half a cell left at both ends."""
    return min(MOST_ITEMS, (_cells(size[0]) - 1) // _STEP)


def _centre(rng: Rng, column: int, row: int) -> tuple[float, float]:
    """Pixels of the middle of a cell, give or take a little."""
    dx, dy = rng.uniform(-_WANDER, _WANDER, size=2)
    return (column + 0.5) * CELL + dx, (row + 0.5) * CELL + dy


def _columns(rng: Rng, across: int, count: int) -> list[int]:
    """`count` of the inner columns, at least two apart, in order."""
    slack = across - 2 - (_STEP * (count - 1) + 1)
    gaps = sorted(int(g) for g in rng.integers(0, slack + 1, size=count))
    return [1 + gap + _STEP * index for index, gap in enumerate(gaps)]


def digit_mask(rng: Rng, digit: int, split: Split, side: int, augment: bool) -> Canvas:
    """How much ink each pixel of a handwritten `digit` has, 0 to 1."""
    rows = rows_by_label(split)[digit]
    pixels = all_digits()[0][int(rng.choice(rows))]
    image = Image.fromarray((pixels.astype(np.float32) * (255 / 16)).astype(np.uint8))
    image = image.resize((64, 64), Image.Resampling.BICUBIC)
    matrix = _affine(rng, augment)
    image = image.transform((64, 64), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    image = image.resize((side, side), Image.Resampling.BOX if side < 32 else Image.Resampling.BILINEAR)
    mask = _fractions(image)
    gain, bias = (rng.uniform(1.1, 1.9), rng.uniform(-0.22, 0.0)) if augment else (1.45, -0.12)
    return _clipped(mask * gain + bias, 1)


def _affine(rng: Rng, augment: bool) -> tuple[float, ...]:
    """The inverse affine map that PIL wants, about the centre of a 64x64 picture."""
    spread = 1.0 if augment else 0.4
    angle = rng.normal(0, 0.11) * spread
    shear = rng.normal(0, 0.12) * spread
    sx, sy = 1 + rng.normal(0, 0.09, size=2) * spread
    tx, ty = rng.normal(0, 1.5, size=2) * spread
    cos, sin = math.cos(angle), math.sin(angle)
    a, b = cos * sx, (-sin + shear) * sx
    d, e = sin * sy, cos * sy
    return (a, b, 32 - 32 * (a + b) + tx, d, e, 32 - 32 * (d + e) + ty)


def shape_mask(rng: Rng, name: str, side: int) -> Canvas:
    """How much of each pixel the shape covers, 0 to 1."""
    big = side * _OVERSAMPLE
    image = Image.new("L", (big, big), 0)
    pen = ImageDraw.Draw(image)
    if name == "circle":
        pen.ellipse((0, 0, big - 1, big - 1), fill=255)
    else:
        tilt = rng.uniform(-0.14, 0.14)
        pen.polygon(_polygon(name, big, tilt), fill=255)
    image = image.resize((side, side), Image.Resampling.BOX)
    return _fractions(image)


def _fractions(image: Image.Image) -> Canvas:
    levels: Canvas = np.asarray(image, dtype=np.float32)
    return levels / np.float32(255)


def _clipped(values: NDArray[np.floating[Any]], top: float) -> Canvas:
    out: Canvas = np.clip(values, 0, top).astype(np.float32)
    return out


def _polygon(name: str, side: float, tilt: float) -> list[tuple[float, float]]:
    """Corners of a square, triangle or star that stay inside the box when tilted a little."""
    if name == "square":
        polar = [(0.62, math.pi * (0.25 + 0.5 * i)) for i in range(4)]
    elif name == "triangle":
        polar = [(0.54, math.pi * (-0.5 + 2 * i / 3)) for i in range(3)]
    else:
        polar = [(0.52 if i % 2 == 0 else 0.22, math.pi * (-0.5 + i / 5)) for i in range(10)]
    sag = 0.05 if name == "triangle" else 0.0  # a triangle's centroid lies below the middle of its box
    return [(side * (0.5 + r * math.cos(t + tilt)), side * (0.5 + sag + r * math.sin(t + tilt))) for r, t in polar]


def background(rng: Rng, size: Size) -> Canvas:
    """A pale or dark greyish ground with a mild gradient; never as saturated as a shape."""
    width, height = size
    level = rng.uniform(205, 255) if rng.random() < 0.7 else rng.uniform(5, 50)
    ground = level + rng.uniform(-9, 9, size=3)
    slope = rng.uniform(-14, 14, size=2)
    ramp = np.linspace(-0.5, 0.5, height)[:, None] * slope[0] + np.linspace(-0.5, 0.5, width)[None] * slope[1]
    return _clipped(ground + ramp[..., None], 255)


def ink(rng: Rng, canvas: Canvas) -> Canvas:
    """A colour for digits that stands out from the ground."""
    dark_ground = float(canvas.mean()) < 128
    if rng.random() < 0.5:
        grey = rng.uniform(200, 255) if dark_ground else rng.uniform(0, 70)
        return np.full(3, grey, dtype=np.float32)
    names = [c for c in COLOURS if (c not in ("blue", "purple") if dark_ground else c != "yellow")]
    return _jitter(rng, RGB[str(rng.choice(names))], 20)


def shape_colour(rng: Rng, colour: str) -> Canvas:
    """A shade of the named colour."""
    return _jitter(rng, RGB[colour], 10)


def _jitter(rng: Rng, colour: Sequence[int], amount: float) -> Canvas:
    shifted = np.asarray(colour, dtype=np.float32) + rng.uniform(-amount, amount, size=3)
    return _clipped(shifted, 255)


def blend(canvas: Canvas, mask: Canvas, colour: Canvas, x: int, y: int) -> None:
    height, width = canvas.shape[:2]
    side = mask.shape[0]
    x, y = max(0, min(x, width - side)), max(0, min(y, height - side))
    alpha = mask[..., None]
    region = canvas[y : y + side, x : x + side]
    region += alpha * (colour - region)


def finish(rng: Rng, canvas: Canvas) -> Image.Image:
    """Adds mild noise and rounds to 8 bits."""
    strength = rng.uniform(0, 10)
    noise = rng.integers(0, 256, size=canvas.shape[:2], dtype=np.uint8).astype(np.float32) / 255 - 0.5
    return Image.fromarray(np.clip(canvas + strength * noise[..., None], 0, 255).astype(np.uint8))
