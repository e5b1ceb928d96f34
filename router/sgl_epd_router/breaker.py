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

    Opens on `failure_threshold` failures in a row, or on as many within `window_s` when they are at least half of all
    calls there: a busy worker with a failure now and then stays in.
    """

    __slots__ = ("_config", "_failures", "_run", "_successes", "_trial_successes", "_trials", "opened_at", "state")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self.state = BreakerState.CLOSED
        self.opened_at = 0.0
        self._run = 0
        self._failures: deque[float] = deque(maxlen=config.failure_threshold)
        self._successes = 0
        self._trials = 0
        self._trial_successes = 0

    @property
    def reopens_at(self) -> float:
        """When an open breaker lets trials through."""
        return self.opened_at + self._config.timeout_s

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now. Half-open allows as many trials at once as must succeed."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and now >= self.reopens_at:
            self._enter_half_open()
        return self.state is BreakerState.HALF_OPEN and self._trials < self._config.success_threshold

    def start(self, now: float) -> bool:
        """A request is being sent; returns whether it is a trial, to be given back to `record_*`."""
        if self.state is not BreakerState.HALF_OPEN:
            return False
        self._trials += 1
        return True

    def record_success(self, now: float, trial: bool = False) -> None:
        self._run = 0
        if self.state is BreakerState.CLOSED:
            self._successes += 1
        elif self._end_trial(trial):
            self._trial_successes += 1
            if self._trial_successes >= self._config.success_threshold:
                self.reset()

    def record_failure(self, now: float, trial: bool = False) -> None:
        if not self._config.enabled:
            return
        if self.state is BreakerState.HALF_OPEN and self._end_trial(trial):
            self.open(now)
        elif self.state is BreakerState.CLOSED:
            self._run += 1
            self._failures.append(now)
            if self._should_open(now):
                self.open(now)

    def record_neutral(self, trial: bool = False) -> None:
        """The request ended without saying anything about the worker (cancelled)."""
        self._end_trial(trial)

    def open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self.opened_at = now
        self._trials = self._trial_successes = 0

    def reset(self) -> None:
        self.state = BreakerState.CLOSED
        self._run = self._successes = self._trials = self._trial_successes = 0
        self._failures.clear()

    def _enter_half_open(self) -> None:
        self.state = BreakerState.HALF_OPEN
        self._trials = self._trial_successes = 0

    def _end_trial(self, trial: bool) -> bool:
        if not trial or self.state is not BreakerState.HALF_OPEN:
            return False
        self._trials = max(0, self._trials - 1)
        return True

    def _should_open(self, now: float) -> bool:
        if self._run >= self._config.failure_threshold:
            return True
        full = len(self._failures) == self._config.failure_threshold
        return full and now - self._failures[0] <= self._config.window_s and len(self._failures) >= self._successes
