"""Real handwritten digits and their fixed split, so that nothing held out is ever trained on.

The 1797 digits of 8x8 pixels (0..16) are scikit-learn's `load_digits`, which is the test part of UCI's
"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (https://doi.org/10.24432/C50P49,
CC BY 4.0). They are stored as one small file so that scikit-learn is not needed at run time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "heldout"]

_FILE = Path(__file__).resolve().parent / "data" / "digits.npz"
_SPLIT_SEED = 20240917
HELDOUT_FRACTION = 0.2


@cache
def all_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images of shape (1797, 8, 8) with values 0..16, and their labels."""
    with np.load(_FILE) as stored:
        return stored["images"], stored["labels"]


@cache
def split_indices(split: Split) -> NDArray[np.int64]:
    """Rows of `all_digits` that belong to `split`, stratified by label and sorted."""
    _, labels = all_digits()
    rng = np.random.default_rng(_SPLIT_SEED)
    chosen = []
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(labels == label))
        heldout = round(len(rows) * HELDOUT_FRACTION)
        chosen.append(rows[:heldout] if split == "heldout" else rows[heldout:])
    return np.sort(np.concatenate(chosen))


@cache
def rows_by_label(split: Split) -> tuple[NDArray[np.int64], ...]:
    """For each label 0..9, the rows of `all_digits` in `split`."""
    _, labels = all_digits()
    rows = split_indices(split)
    return tuple(rows[labels[rows] == label] for label in range(10))
