"""Whether a worker is alive, from probes and from its traffic.

A busy worker answers its health probe late or not in time (a stock encoder's loop is blocked during each forward), so a
probe that times out counts only while no traffic has succeeded lately. A refused connection always counts.
"""

from __future__ import annotations

import dataclasses
import enum


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
    """Healthy until proven otherwise; `unhealthy -> healthy` needs `success_threshold` good signs in a row."""

    __slots__ = ("_config", "_failures", "_successes", "healthy", "reason", "seen_at")

    def __init__(self, config: HealthConfig, *, healthy: bool = True) -> None:
        self._config = config
        self.healthy = healthy or not config.enabled
        self.reason = "" if self.healthy else "not checked yet"
        self.seen_at = float("-inf")
        self._failures = 0
        self._successes = 0

    def record_traffic(self, now: float) -> None:
        """Bytes of an answer arrived."""
        self.seen_at = now

    def record_probe(self, probe: Probe, now: float) -> bool:
        """Returns whether `healthy` changed."""
        if probe is Probe.OK:
            return self._good()
        if probe is Probe.TIMEOUT and self._busy(now):
            return False
        return self._bad(probe)

    def _busy(self, now: float) -> bool:
        return now - self.seen_at <= self._config.interval_s + self._config.timeout_s

    def _good(self) -> bool:
        self._failures = 0
        if self.healthy:
            return False
        self._successes += 1
        if self._successes < self._config.success_threshold:
            return False
        self.healthy, self.reason = True, ""
        return True

    def _bad(self, probe: Probe) -> bool:
        self._successes = 0
        self._failures += 1
        if not self.healthy or self._failures < self._config.failure_threshold:
            return False
        self.healthy, self.reason = False, f"health check: {probe.value}"
        return True
