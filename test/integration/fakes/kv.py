"""The way from prefill to decode, as far as it shows outside: both sides meet in a room or wait.

A room is (bootstrap host, bootstrap port, room number). As in SGLang, neither side gets on without the other, whatever
the reason: another address, another number, a partner that never came, or a second pair in the same room.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

Room = tuple[str, int, int]


@dataclass
class _Meeting:
    bodies: dict[str, str]
    both_here: asyncio.Event


class KvFabric:
    """All rooms of one test."""

    def __init__(self) -> None:
        self._rooms: dict[Room, _Meeting] = {}
        self.meetings = 0
        self.collisions: list[Room] = []
        self.mismatches: list[Room] = []
        self.entries: list[tuple[str, Room]] = []

    async def meet(self, side: str, room: Room, body_digest: str) -> None:
        """Wait until the other side is in the room with the same body. For ever, if it never is."""
        self.entries.append((side, room))
        meeting = self._rooms.setdefault(room, _Meeting({}, asyncio.Event()))
        if side in meeting.bodies:
            self.collisions.append(room)
            await asyncio.Event().wait()
        meeting.bodies[side] = body_digest
        try:
            if len(meeting.bodies) == 2:
                self._join(room, meeting)
            await meeting.both_here.wait()
        finally:
            meeting.bodies.pop(side, None)
            if not meeting.bodies:
                self._rooms.pop(room, None)

    def _join(self, room: Room, meeting: _Meeting) -> None:
        if len(set(meeting.bodies.values())) > 1:
            self.mismatches.append(room)
            return
        self.meetings += 1
        meeting.both_here.set()

    @property
    def reused(self) -> list[tuple[str, Room]]:
        """Sides that entered the same room twice: a retry must take a new one."""
        return [entry for entry in set(self.entries) if self.entries.count(entry) > 1]

    @property
    def waiting(self) -> int:
        """How many sides are still in a room."""
        return sum(len(meeting.bodies) for meeting in self._rooms.values())
