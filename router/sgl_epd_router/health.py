"""Whether a worker is alive, from probes and from its traffic.

A busy worker answers its health probe late or not in time (a stock encoder's loop is blocked during each forward), so a
probe that times out counts only when no other sign of life came for a while. A refused connection always counts.
"""

from __future__ import annotations

import dataclasses
import enum

_FIRST_RETRY_S = 1.0
_RETRY_FACTOR = 1.5
_LONGEST_RETRY_S = 5.0
_GRACE_TIMEOUTS = 6


class Probe(enum.StrEnum):
    """What one health probe found."""

    OK = "ok"
    TIMEOUT = "timeout"
    BAD_STATUS = "bad_status"
    UNREACHABLE = "unreachable"


@dataclasses.dataclass(frozen=True, slots=True)
class HealthConfig:
    """Names and defaults of upstream's `--health-*` flags."""

    failure_threshold: int = 3
    success_threshold: int = 2
    timeout_s: float = 5.0
    interval_s: float = 60.0
    endpoint: str = "/health"
    enabled: bool = True


class HealthState:
    """Healthy until a probe says otherwise.

    A worker never seen alive is taken out by its first failed probe and comes in with its first good one; one that has
    served needs the configured number of either in a row.
    """

    __slots__ = (
        "_config",
        "_failures",
        "_probed_at",
        "_successes",
        "healthy",
        "next_probe_at",
        "proven",
        "reason",
        "seen_at",
    )

    def __init__(self, config: HealthConfig, now: float = 0.0) -> None:
        self._config = config
        self.healthy = True
        self.proven = not config.enabled
        self.reason = ""
        self.seen_at = float("-inf")
        self.next_probe_at = now
        self._probed_at = float("-inf")
        self._failures = 0
        self._successes = 0

    def suspect(self, now: float) -> None:
        """A request failed: find out now rather than at the next regular probe, but not more than once a second."""
        if self.healthy:
            self.next_probe_at = min(self.next_probe_at, max(now, self._probed_at + _FIRST_RETRY_S))

    def probing(self, now: float) -> None:
        """A probe was sent; no other one before it must have ended."""
        self._probed_at = now
        self.next_probe_at = now + self._config.timeout_s + self._config.interval_s

    def record_probe(self, probe: Probe, now: float) -> bool:
        """Returns whether `healthy` changed."""
        if probe is Probe.OK:
            return self._good(now)
        self.next_probe_at = now + self._retry_delay()
        self._failures += 1
        if probe is Probe.TIMEOUT and now - self.seen_at <= _GRACE_TIMEOUTS * self._config.timeout_s:
            self._failures = min(self._failures, self._config.failure_threshold - 1)
            return False
        return self._bad(probe)

    def override(self, healthy: bool, reason: str, proven: bool) -> None:
        """Take over what another process has found out."""
        self.healthy, self.reason, self.proven = healthy, reason, proven

    def _good(self, now: float) -> bool:
        self.seen_at = now
        self._failures = 0
        self.next_probe_at = now + self._config.interval_s
        if self.healthy:
            self.proven = True
            return False
        self._successes += 1
        if self.proven and self._successes < self._config.success_threshold:
            self.next_probe_at = now + min(_FIRST_RETRY_S, self._config.interval_s)
            return False
        self.healthy, self.proven, self.reason = True, True, ""
        return True

    def _bad(self, probe: Probe) -> bool:
        self._successes = 0
        if not self.healthy or (self.proven and self._failures < self._config.failure_threshold):
            return False
        self.healthy, self.reason = False, f"health check: {probe.value}"
        return True

    def _retry_delay(self) -> float:
        """Short, so that a dead worker, the end of a start and a return are all noticed within seconds."""
        growing = _FIRST_RETRY_S * _RETRY_FACTOR ** min(self._failures, 20)
        return float(min(self._config.interval_s, _LONGEST_RETRY_S, growing))
