"""When a failed request is tried again, and how long to wait before.

The budget is shared by all requests: in an outage each request would otherwise be multiplied by its retries just when
the workers can bear it least.
"""

from __future__ import annotations

import dataclasses
import random

_BURST_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class RetryConfig:
    """Names and defaults of upstream's `--retry-*` flags, in seconds, and the budget."""

    max_retries: int = 5
    initial_backoff_s: float = 0.05
    max_backoff_s: float = 30.0
    multiplier: float = 1.5
    jitter: float = 0.2
    budget_ratio: float = 0.2
    budget_per_s: float = 10.0
    enabled: bool = True


class RetryBudget:
    """A bucket of retries: each request adds a fraction of one, time adds some, each retry takes one."""

    def __init__(self, config: RetryConfig, now: float = 0.0) -> None:
        self._config = config
        self._most = max(1.0, config.budget_per_s * _BURST_S)
        self._tokens = self._most
        self._at = now

    def on_request(self) -> None:
        self._tokens = min(self._most, self._tokens + self._config.budget_ratio)

    def spend(self, now: float) -> bool:
        """Take one retry if there is one."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._config.budget_per_s)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Retrier:
    """Decides about retries of all requests of this process."""

    def __init__(self, config: RetryConfig, now: float = 0.0, seed: int | None = None) -> None:
        self._config = config
        self._budget = RetryBudget(config, now)
        self._random = random.Random(seed)

    def on_request(self) -> None:
        """A new request has come; call it once for each."""
        self._budget.on_request()

    def delay_s(self, attempt: int, now: float, deadline: float, retry_after_s: float | None = None) -> float | None:
        """How long to wait before retry number `attempt` (from 1), or None to give up.

        `deadline` is a point in time. A worker's `Retry-After` is respected if the deadline allows it.
        """
        config = self._config
        if not config.enabled or attempt > config.max_retries:
            return None
        wait = max(self.backoff_s(attempt), retry_after_s or 0.0)
        if now + wait >= deadline or not self._budget.spend(now):
            return None
        return wait

    def backoff_s(self, attempt: int) -> float:
        """Grows by the multiplier up to the maximum, spread by the jitter on both sides."""
        config = self._config
        # The exponent is capped so that a large number of retries cannot overflow a float.
        grown = config.initial_backoff_s * config.multiplier ** min(attempt - 1, 200)
        return min(config.max_backoff_s, grown) * (1.0 + config.jitter * self._random.uniform(-1.0, 1.0))
