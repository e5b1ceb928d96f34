"""What users felt: TTFT, TPOT, ITL, end to end, waits at each stage, and how many requests met the targets.

The same objects count in the simulator and in the client-side benchmark. Nothing is kept for a request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from sgl_epd.errors import ConfigError
from sgl_epd.planner.digest import Digest

SLO_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


class Slo(msgspec.Struct, frozen=True):
    """A request is good if it meets both targets, in seconds."""

    ttft_s: float
    tpot_s: float

    def needed_scale(self, ttft_s: float, tpot_s: float) -> float:
        """By how much both targets would have to be multiplied to be met just so."""
        return max(ttft_s / self.ttft_s, tpot_s / self.tpot_s)


def parse_slo(text: str) -> Slo:
    """`ttft=2.6,tpot=0.04`. Raises `ConfigError`."""
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(","))
    try:
        values = {name: float(pairs.pop(name)) for name in ("ttft", "tpot")}
        if pairs or min(values.values()) <= 0:
            raise ValueError
    except (KeyError, ValueError):
        raise ConfigError(f"{text!r} is no SLO; write ttft=SECONDS,tpot=SECONDS, both above 0") from None
    return Slo(values["ttft"], values["tpot"])


PAPER_SLOS: dict[str, dict[int, Slo]] = {
    "minicpm-v-2.6": {2: Slo(1.4, 0.04), 4: Slo(2.6, 0.04), 6: Slo(3.9, 0.06), 8: Slo(5.1, 0.06)},
    "internvl2-8b": {2: Slo(1.2, 0.05), 4: Slo(2.4, 0.06), 6: Slo(3.55, 0.09), 8: Slo(5.0, 0.18)},
    # The paper prints 0.95 for six images, most probably meaning this.
    "internvl2-26b": {2: Slo(3.5, 0.07), 4: Slo(7.05, 0.08), 6: Slo(11.0, 0.095), 8: Slo(15.0, 0.15)},
}
"""By model and images in a request: table 9 of arXiv 2501.05460v4."""


class Finished(NamedTuple):
    """One request's fate. Times are points on one clock, in seconds."""

    at: float
    """When it was due (open loop), not when a late client came round to sending it."""
    first_token_at: float
    done_at: float
    output_tokens: int
    waits: tuple[tuple[str, float], ...] = ()
    """(stage, seconds that it waited there before anything happened)."""

    @property
    def ttft_s(self) -> float:
        return self.first_token_at - self.at

    @property
    def tpot_s(self) -> float:
        """Mean gap between tokens after the first; 0 for an answer of one token."""
        return (self.done_at - self.first_token_at) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def e2e_s(self) -> float:
        return self.done_at - self.at


@dataclasses.dataclass
class Metrics:
    """Counts finished and failed requests. A failed one met no target."""

    slo: Slo | None = None
    scales: Sequence[float] = SLO_SCALES
    warmup: int = 0
    """So many of the first requests to arrive are not counted: an empty system flatters."""
    ttft: Digest = dataclasses.field(default_factory=Digest)
    tpot: Digest = dataclasses.field(default_factory=Digest)
    itl: Digest = dataclasses.field(default_factory=Digest)
    e2e: Digest = dataclasses.field(default_factory=Digest)
    waits: dict[str, Digest] = dataclasses.field(default_factory=dict)
    finished: int = 0
    failed: int = 0
    output_tokens: int = 0
    first_at: float = float("inf")
    last_at: float = 0.0

    def __post_init__(self) -> None:
        self._good = dict.fromkeys(self.scales, 0)

    def add(self, request: Finished, number: int | None = None) -> None:
        """`number` is the request's place in the order of arrival."""
        if number is not None and number < self.warmup:
            return
        self.finished += 1
        self.output_tokens += request.output_tokens
        self.first_at, self.last_at = min(self.first_at, request.at), max(self.last_at, request.done_at)
        ttft_s, tpot_s = request.ttft_s, request.tpot_s
        self.ttft.add(ttft_s)
        self.e2e.add(request.e2e_s)
        if request.output_tokens > 1:
            self.tpot.add(tpot_s)
        for stage, wait_s in request.waits:
            self.waits.setdefault(stage, Digest()).add(wait_s)
        if self.slo is not None:
            needed = self.slo.needed_scale(ttft_s, tpot_s)
            for scale in self.scales:
                self._good[scale] += needed <= scale

    def fail(self, at: float, number: int | None = None) -> None:
        """A request that came at `at` was refused or broken off."""
        if number is None or number >= self.warmup:
            self.failed += 1
            self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)

    def gap(self, seconds: float, count: int = 1) -> None:
        """Time between two tokens of one answer."""
        self.itl.add(seconds, count)

    @property
    def requests(self) -> int:
        return self.finished + self.failed

    @property
    def span_s(self) -> float:
        """From the first arrival to the last end."""
        return max(0.0, self.last_at - self.first_at)

    @property
    def bad(self) -> int:
        """Requests that missed the targets as they are (scale 1). 0 without targets."""
        return self.requests - self._good[1.0] if self.slo is not None and 1.0 in self._good else 0

    def attainment(self, scale: float = 1.0) -> float:
        """Share of all requests that met the targets times `scale`. Raises `ConfigError` without targets."""
        if self.slo is None or scale not in self._good:
            raise ConfigError(f"no attainment at scale {scale:g} was counted")
        return self._good[scale] / self.requests if self.requests else 0.0

    def summary(self, devices: int | None = None) -> dict[str, Any]:
        """All of it as plain numbers, for JSON."""
        span = self.span_s
        per_s = {
            "requests_per_s": self.finished / span if span else 0.0,
            "output_tokens_per_s": self.output_tokens / span if span else 0.0,
        }
        result: dict[str, Any] = {
            "requests": self.requests,
            "failed": self.failed,
            "span_s": span,
            **per_s,
            **{name: getattr(self, name).summary() for name in ("ttft", "tpot", "itl", "e2e")},
            "waits": {stage: digest.summary() for stage, digest in self.waits.items()},
        }
        if devices:
            result |= {f"{name}_per_device": value / devices for name, value in per_s.items()}
        if self.slo is not None:
            result["slo"] = msgspec.to_builtins(self.slo)
            result["attainment"] = {f"{scale:g}": self.attainment(scale) for scale in self.scales}
        return result
