"""How long a request may wait in each stage, and an alarm that keeps watch at the price of one timer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from sgl_epd_router.flags_control import DeadlineFlags

NEVER = float("inf")


@dataclasses.dataclass(frozen=True, slots=True)
class Deadlines:
    """Durations in seconds."""

    total_s: float = 1800.0
    prefill_s: float = 300.0
    first_token_s: float = 600.0
    stream_idle_s: float = 300.0

    @classmethod
    def from_flags(cls, flags: DeadlineFlags) -> Deadlines:
        return cls(
            flags.request_timeout_secs,
            flags.prefill_timeout_secs,
            flags.first_token_timeout_secs,
            flags.stream_idle_timeout_secs,
        )


class Alarm:
    """Calls `ring` some time after `at`. Moving `at` later, as each event of a stream does, costs nothing."""

    __slots__ = ("_armed_at", "_at", "_handle", "_loop", "_ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._at = NEVER
        self._armed_at = NEVER
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at `at` (the loop's time) instead of whenever it was to ring."""
        self._at = at
        if at < self._armed_at:
            self.stop()
            self._arm(at)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_at = NEVER

    def _arm(self, at: float) -> None:
        self._armed_at = at
        self._handle = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._armed_at = NEVER
        if self._loop.time() < self._at:
            if self._at < NEVER:
                self._arm(self._at)
            return
        self._ring()
