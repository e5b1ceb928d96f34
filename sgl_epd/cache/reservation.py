"""What `MMBlockManager` keeps books on: embeddings in blocks, and the reservations that hold them.

    reserved ---fill---> filled <--> sending       held by reservations
        |                  |  \\--- last holder leaves, no send --> cached ---hold---> filled
        v                  v                                        |
      (quarantine) ---> free <----------------- evicted ------------/

A state is never stored, it follows from who holds the embedding and whether it is filled, so the two cannot differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

from sgl_epd.cache.layout import Run


class Want(NamedTuple):
    """One embedding that a reservation asks for, by its key and its number of rows."""

    key: bytes
    rows: int


class Found(StrEnum):
    """How a want was met when its reservation was granted."""

    HIT = "hit"
    """Filled before: nothing to do."""
    JOINED = "joined"
    """Somebody else's reservation has it written; ours holds it as well."""
    MISS = "miss"
    """New blocks, and ours is the reservation that has it written."""


class State(StrEnum):
    RESERVED = "reserved"
    FILLED = "filled"
    SENDING = "sending"
    CACHED = "cached"


@dataclasses.dataclass(eq=False, slots=True)
class Embedding:
    """One item's embedding and its blocks."""

    want: Want
    runs: tuple[Run, ...]
    filled: bool = False
    writers: dict[Hashable, float] = dataclasses.field(default_factory=dict)
    """Orders to peers to write here that may still be carried out -> until when, at the latest."""
    sends: int = 0
    """Writes under way that read the blocks."""
    holders: dict[Reservation, None] = dataclasses.field(default_factory=dict)
    """In order of arrival. The first one has it written, as long as it is not filled."""

    @property
    def num_blocks(self) -> int:
        return sum(run.length for run in self.runs)

    @property
    def unsafe_until(self) -> float:
        """Until then the blocks may be written to, so nobody else may get them."""
        return max(self.writers.values(), default=float("-inf"))

    @property
    def writer(self) -> Reservation | None:
        return None if self.filled else next(iter(self.holders), None)

    @property
    def idle(self) -> bool:
        return not self.holders and not self.sends

    @property
    def state(self) -> State:
        if not self.filled:
            return State.RESERVED
        if self.sends:
            return State.SENDING
        return State.FILLED if self.holders else State.CACHED


class Status(StrEnum):
    WAITING = "waiting"
    GRANTED = "granted"
    ENDED = "ended"


@dataclasses.dataclass(eq=False, slots=True)
class Reservation:
    """One owner's claim to all embeddings that it needs: granted as a whole or not at all."""

    owner: str
    wants: tuple[Want, ...]
    expires_at: float
    status: Status = Status.WAITING
    embeddings: dict[Want, Embedding] = dataclasses.field(default_factory=dict)
    """Empty until granted."""
    found: dict[Want, Found] = dataclasses.field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Granted, and every embedding is filled."""
        return self.status is Status.GRANTED and all(e.filled for e in self.embeddings.values())

    def to_write(self) -> list[Embedding]:
        """The embeddings that this reservation has to have written."""
        return [e for e in self.embeddings.values() if e.writer is self]
