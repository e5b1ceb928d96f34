"""When a supervised process is started, replaced and given up. Pure: every method takes `now`.

    waiting --start_at reached--> starting --first good probe--> ready <--probes--> unhealthy
       ^                             |                             |                    |
       +-------- exited (back-off) --+-----------------------------+--------------------+
                     |
                     +-- too many quick deaths --> given up (final)

`starting` for longer than `startup_timeout_s` and `unhealthy` for longer than `unhealthy_after_s` ask for a
replacement: the owner ends the process and reports `exited`.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from sgl_epd.errors import ConfigError


class State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    GIVEN_UP = "given up"


class Action(StrEnum):
    """What the owner of a `Lifecycle` has to do now."""

    NONE = "none"
    START = "start"
    REPLACE = "replace"


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """All in seconds, except the number of quick deaths and the factor.

    A death is quick when the process had not been ready for `stable_after_s`. `max_quick_deaths` of them in a row end
    the attempts; one process that was stable starts the count anew.
    """

    startup_timeout_s: float = 1800.0
    unhealthy_after_s: float = 120.0
    initial_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    backoff_factor: float = 2.0
    stable_after_s: float = 60.0
    max_quick_deaths: int = 5

    def __post_init__(self) -> None:
        if self.initial_backoff_s < 0 or self.max_backoff_s < self.initial_backoff_s:
            raise ConfigError("the restart back-off must not be negative, nor larger than its maximum")
        if self.backoff_factor < 1:
            raise ConfigError("the back-off factor must be at least 1")
        if self.max_quick_deaths < 1:
            raise ConfigError("at least one death must be allowed before a process is given up")

    def backoff_s(self, quick_deaths: int) -> float:
        """Pause before the next start after `quick_deaths` quick deaths in a row (0: it had been stable)."""
        pause = self.initial_backoff_s
        for _ in range(quick_deaths - 1):
            pause *= self.backoff_factor
            if pause >= self.max_backoff_s:
                break
        return min(pause, self.max_backoff_s)


class Lifecycle:
    """The life of one process over its restarts. Owned by the supervisor."""

    def __init__(self, policy: RestartPolicy, now: float) -> None:
        self._policy = policy
        self.state = State.WAITING
        self.since = now
        self.start_at = now
        self.starts = 0
        self.quick_deaths = 0
        self._ready_at: float | None = None

    @property
    def running(self) -> bool:
        return self.state in (State.STARTING, State.READY, State.UNHEALTHY)

    def decide(self, now: float) -> Action:
        """Has no effect: the answer stays the same until `started` or `exited` is called."""
        age = now - self.since
        if self.state is State.WAITING and now >= self.start_at:
            return Action.START
        if self.state is State.STARTING and age > self._policy.startup_timeout_s:
            return Action.REPLACE
        if self.state is State.UNHEALTHY and age > self._policy.unhealthy_after_s:
            return Action.REPLACE
        return Action.NONE

    def started(self, now: float) -> int:
        """The process has been started. Returns its number, which its probes must carry."""
        self._must_be(State.WAITING)
        self.starts += 1
        self._ready_at = None
        self._enter(State.STARTING, now)
        return self.starts

    def probed(self, now: float, number: int, ok: bool) -> None:
        """A health probe of process `number` has ended. Late answers of an ended process change nothing."""
        if number != self.starts or not self.running:
            return
        if ok and self.state is not State.READY:
            if self._ready_at is None:
                self._ready_at = now
            self._enter(State.READY, now)
        elif not ok and self.state is State.READY:
            self._enter(State.UNHEALTHY, now)

    def exited(self, now: float) -> State:
        """The process has ended, for whatever reason. Returns `WAITING` or `GIVEN_UP`."""
        if not self.running:
            raise AssertionError(f"exited() while {self.state}")
        was_stable = self._ready_at is not None and now - self._ready_at >= self._policy.stable_after_s
        self.quick_deaths = 0 if was_stable else self.quick_deaths + 1
        if self.quick_deaths >= self._policy.max_quick_deaths:
            self._enter(State.GIVEN_UP, now)
        else:
            self.start_at = now + self._policy.backoff_s(self.quick_deaths)
            self._enter(State.WAITING, now)
        return self.state

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.since = now

    def _must_be(self, state: State) -> None:
        if self.state is not state:
            raise AssertionError(f"expected {state}, is {self.state}")
