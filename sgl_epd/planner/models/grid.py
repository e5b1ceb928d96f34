"""Pieces that several families' image rules share."""

from __future__ import annotations

from sgl_epd.errors import BadRequestError
from sgl_epd.planner.models.spec import MediaSize


def check_size(width: int, height: int, frames: int = 1) -> None:
    if min(width, height, frames) < 1:
        raise BadRequestError(f"an image of {width} x {height} pixels in {frames} frames")


def tiles(count: int, patches: int, embeddings: int, *, pixels: int, prompt_tokens: int | None = None) -> MediaSize:
    """`count` equal sequences of `patches` tokens, each of which becomes `embeddings` rows."""
    rows = count * embeddings
    return MediaSize(
        sequences=count,
        patches=count * patches,
        patches_squared=count * patches * patches,
        embeddings=rows,
        prompt_tokens=rows if prompt_tokens is None else prompt_tokens,
        pixels=count * pixels,
    )


def closest_grid(width: int, height: int, tile: int, least: int, most: int) -> tuple[int, int]:
    """(columns, rows) whose shape is nearest to the image's; of equal shapes the larger while it is not twice too big.

    InternVL's `dynamic_preprocess`; the same as `get_optimal_tiled_canvas` of transformers' GotOcr2 processor.
    """
    ratio, area = width / height, width * height
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if least <= c * r <= most]
    best, best_difference = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(ratio - columns / rows)
        larger = difference == best_difference and area > 0.5 * tile * tile * columns * rows
        if difference < best_difference or larger:
            best, best_difference = (columns, rows), difference
    return best
