"""A circuit breaker: stops sending to a worker that keeps failing, and finds out when it is well again.

Pure: every method takes `now` in seconds. Only the worker's own faults may be given to `record_failure`; client errors
and back-pressure are not faults.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque


class BreakerState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclasses.dataclass(frozen=True, slots=True)
class BreakerConfig:
    """Names and defaults of upstream's `--cb-*` flags."""

    failure_threshold: int = 10
    success_threshold: int = 3
    timeout_s: float = 60.0
    window_s: float = 120.0
    enabled: bool = True


class Breaker:
    """Closed -> open after too many failures -> half-open after `timeout_s` -> closed after successful trials.

    Opens on `failure_threshold` failures in a row, or on as many within `window_s` if there were no more successes
    since the first of them: a busy worker that fails now and then stays in. Half-open lets as many trials through at
    once as must succeed; the first that fails opens it again.
    """

    __slots__ = ("_config", "_failures", "_in_a_row", "_phase", "_successes", "_trials", "_won", "opened_at", "state")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self.state = BreakerState.CLOSED
        self.opened_at = float("-inf")
        self._in_a_row = 0
        self._successes = 0
        self._failures: deque[tuple[float, int]] = deque(maxlen=config.failure_threshold)
        """(when, successes before it), the latest `failure_threshold` ones."""
        self._phase = 0
        self._trials = 0
        self._won = 0

    @property
    def half_open_at(self) -> float:
        """When an open breaker lets trials through."""
        return self.opened_at + self._config.timeout_s

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and now >= self.half_open_at:
            self._enter(BreakerState.HALF_OPEN)
        return self.state is BreakerState.HALF_OPEN and self._trials + self._won < self._config.success_threshold

    def start(self) -> int:
        """A request is being sent. Returns which half-open phase it is a trial of (0: none), for `record_*`."""
        if self.state is not BreakerState.HALF_OPEN:
            return 0
        self._trials += 1
        return self._phase

    def record_success(self, now: float, trial: int = 0) -> None:
        if self.state is BreakerState.CLOSED:
            self._in_a_row = 0
            self._successes += 1
        elif self._end_trial(trial):
            self._won += 1
            if self._won >= self._config.success_threshold:
                self.close()

    def record_failure(self, now: float, trial: int = 0) -> None:
        if not self._config.enabled:
            return
        if self._end_trial(trial):
            self.open(now)
        elif self.state is BreakerState.CLOSED:
            self._in_a_row += 1
            self._failures.append((now, self._successes))
            if self._should_open(now):
                self.open(now)

    def record_neutral(self, trial: int = 0) -> None:
        """The request ended without saying anything about the worker (cancelled)."""
        self._end_trial(trial)

    def open(self, now: float) -> None:
        self.opened_at = now
        self._enter(BreakerState.OPEN)

    def close(self) -> None:
        self._enter(BreakerState.CLOSED)

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._phase += 1
        self._trials = self._won = self._in_a_row = self._successes = 0
        self._failures.clear()

    def _end_trial(self, trial: int) -> bool:
        """False if the request was no trial of the present half-open phase."""
        if self.state is not BreakerState.HALF_OPEN or trial != self._phase:
            return False
        self._trials -= 1
        return True

    def _should_open(self, now: float) -> bool:
        threshold = self._config.failure_threshold
        if self._in_a_row >= threshold:
            return True
        if len(self._failures) < threshold:
            return False
        first_at, successes_then = self._failures[0]
        return now - first_at <= self._config.window_s and self._successes - successes_then <= threshold
