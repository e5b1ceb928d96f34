"""Draws numbers from real handwritten digits, and coloured shapes, with varied size, place and background."""

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

MIN_SIDE, MAX_SIDE = 84, 224
RGB = {
    "red": (214, 38, 38),
    "green": (44, 156, 62),
    "blue": (44, 84, 208),
    "yellow": (240, 210, 40),
    "purple": (140, 52, 166),
    "orange": (244, 132, 24),
}
_OVERSAMPLE = 4  # shapes are drawn larger and reduced, for smooth edges
_MIN_GAP = 28.0  # pixels between the centres of two shapes along x, so that "left to right" is never in doubt


def random_size(rng: Rng) -> Size:
    """Width and height of a picture."""
    width, height = rng.integers(MIN_SIDE, MAX_SIDE, size=2, endpoint=True)
    return int(width), int(height)


def draw_number(rng: Rng, split: Split, size: Size, augment: bool = False) -> tuple[Image.Image, Scene]:
    """A number of 1 to 4 digits without leading zeros. `augment` distorts digits further, for training."""
    width, height = size
    count = int(rng.integers(1, min(4, width // 36), endpoint=True))
    digits = [int(d) for d in rng.integers(0, 10, size=count)]
    if count > 1 and digits[0] == 0:
        digits[0] = int(rng.integers(1, 10))
    pitch = rng.uniform(0.82, 1.0)
    largest = min(72.0, height * 0.92, width * 0.96 / (1 + pitch * (count - 1)))
    side = rng.uniform(min(36.0, largest), largest)
    x = rng.uniform(0, width - side * (1 + pitch * (count - 1)))
    y = rng.uniform(0, height - side)
    canvas = background(rng, size)
    pen = ink(rng, canvas)
    items = []
    for digit in digits:
        dy = float(np.clip(y + rng.uniform(-0.06, 0.06) * side, 0, height - side))
        mask = digit_mask(rng, digit, split, round(side), augment)
        blend(canvas, mask, pen, round(x), round(dy))
        items.append(Item(str(digit), "", (x + side / 2) / width, (dy + side / 2) / height))
        x += side * pitch
    return finish(rng, canvas), Scene("number", tuple(items))


def draw_shapes(rng: Rng, size: Size) -> tuple[Image.Image, Scene]:
    """One to four coloured shapes that do not overlap."""
    width, height = size
    most = min(4, int((width - 30) // (_MIN_GAP + 4)))
    boxes = _place(rng, size, int(rng.integers(1, most, endpoint=True)))
    palette = [(str(rng.choice(SHAPES)), str(rng.choice(COLOURS))) for _ in boxes]
    if rng.random() < 0.4:  # repeat a kind often, so that counting has something to count
        palette = [palette[int(rng.integers(0, 2))] if len(palette) > 1 else p for p in palette]
    canvas = background(rng, size)
    items = []
    for (x, y, side), (name, colour) in zip(boxes, palette, strict=True):
        mask = shape_mask(rng, name, round(side))
        blend(canvas, mask, shape_colour(rng, colour), round(x - side / 2), round(y - side / 2))
        items.append(Item(name, colour, x / width, y / height))
    return finish(rng, canvas), Scene("shapes", tuple(items))


def _place(rng: Rng, size: Size, count: int) -> list[tuple[float, float, float]]:
    """Centre x, centre y and side of `count` boxes that do not overlap, from left to right."""
    width, height = size
    top = min(64.0, height * 0.6, width * 0.6)
    boxes: list[tuple[float, float, float]] = []
    tries = 0
    while len(boxes) < count:
        tries += 1
        if tries % 60 == 0:  # a dead end: start over with smaller shapes
            boxes, top = [], max(30.0, top * 0.85)
        side = rng.uniform(28.0, top)
        x = rng.uniform(side / 2, width - side / 2)
        y = rng.uniform(side / 2, height - side / 2)
        if all(_apart(x, y, side, box) for box in boxes):
            boxes.append((x, y, side))
    return sorted(boxes)


def _apart(x: float, y: float, side: float, other: tuple[float, float, float]) -> bool:
    ox, oy, oside = other
    reach = (side + oside) / 2 + 2
    return abs(x - ox) >= _MIN_GAP and (abs(x - ox) >= reach or abs(y - oy) >= reach)


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
    strength = rng.uniform(0, 14)
    noise = rng.integers(0, 256, size=canvas.shape[:2], dtype=np.uint8).astype(np.float32) / 255 - 0.5
    return Image.fromarray(np.clip(canvas + strength * noise[..., None], 0, 255).astype(np.uint8))
