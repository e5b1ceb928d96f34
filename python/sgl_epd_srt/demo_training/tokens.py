"""Tokens of conversations: ids, what is to be learnt, positions, and which token may see which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass
class Tokens:
    """One conversation, written piece by piece. Branches start anew from the same place."""

    tokenizer: Any
    image_pad: int
    ids: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)  # temporal, height, width
    branches: list[int] = field(default_factory=list)  # 0 for what all branches share
    weights: list[float] = field(default_factory=list)  # 0 for tokens that are not learnt
    _next: int = 0
    _branch: int = 0
    _fork_at: int = 0

    def add(self, text: str, learn: bool = False) -> None:
        """An answer's tokens weigh less the more there are, so that short answers are not drowned."""
        new = self.tokenizer.encode(text, add_special_tokens=False)
        self._extend(new, [(p, p, p) for p in range(self._next, self._next + len(new))])
        self._next += len(new)
        if learn:
            self.weights[-len(new) :] = [len(new) ** -0.5] * len(new)

    def add_picture(self, grid: tuple[int, int]) -> None:
        """Qwen2-VL's positions of a picture: rows and columns of cells; it takes as many as its longer side."""
        across, down = grid
        start = self._next
        places = [(start, start + row, start + column) for row in range(down) for column in range(across)]
        self._extend([self.image_pad] * len(places), places)
        self._next += max(across, down)

    def branch_off(self, number: int) -> None:
        """What follows is seen by no other branch, and stands where the shared part ended."""
        if self._branch == 0:
            self._fork_at = self._next
        self._branch, self._next = number, self._fork_at

    def image_places(self) -> Ints:
        return np.flatnonzero(np.asarray(self.ids) == self.image_pad)

    def _extend(self, ids: list[int], positions: list[tuple[int, int, int]]) -> None:
        self.ids += ids
        self.positions += positions
        self.branches += [self._branch] * len(ids)
        self.weights += [0.0] * len(ids)


@dataclass
class Words:
    """Rows of packed conversations. `targets` and `weights` of a token are those of the token after it."""

    ids: Ints  # (rows, length)
    positions: Ints  # (3, rows, length)
    targets: Ints
    weights: NDArray[np.float32]
    conversations: Ints  # which one a token belongs to; 0 is padding
    branches: Ints
    image_slots: Ints  # for each cell of the batch its flat place in `ids`, or -1 for none

    @classmethod
    def empty(cls, rows: int, length: int, pad: int) -> Words:
        def zeros() -> Ints:
            return np.zeros((rows, length), dtype=np.int64)

        return cls(
            ids=zeros() + pad,
            positions=np.zeros((3, rows, length), dtype=np.int64),
            targets=zeros(),
            weights=np.zeros((rows, length), dtype=np.float32),
            conversations=zeros(),
            branches=zeros(),
            image_slots=np.zeros(0, dtype=np.int64),
        )

    def put(self, tokens: Tokens, row: int, start: int, number: int) -> None:
        """Places a conversation. A branch's first token is no target: what stands before it is another branch."""
        here = slice(start, start + len(tokens.ids))
        before = slice(start, start + len(tokens.ids) - 1)
        self.ids[row, here] = tokens.ids
        self.positions[:, row, here] = np.asarray(tokens.positions).T
        self.conversations[row, here] = number
        self.branches[row, here] = tokens.branches
        self.targets[row, before] = tokens.ids[1:]
        self.weights[row, before] = tokens.weights[1:]
