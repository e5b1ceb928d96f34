"""Numbers at random, as data: what a workload file says about lengths, counts and sizes.

On the command line a distribution is written `constant:10`, `uniform:4:21`, `lognormal:300:0.8`, `bounded:4:21:11.4`
or `choice:1=0.7,2=0.3`; a bare number is a constant.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate
from typing import Annotated

import msgspec

from sgl_epd.errors import ConfigError

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    value: float

    def draw(self, rng: random.Random) -> float:
        return self.value

    @property
    def mean(self) -> float:
        return self.value


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Between both ends."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"uniform from {self.low} to {self.high}: the ends are in the wrong order")

    def draw(self, rng: random.Random) -> float:
        return rng.uniform(self.low, self.high)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2


class LogNormal(msgspec.Struct, frozen=True, tag="lognormal"):
    """Long-tailed: half of all are below `median`, 16 % above median * e^sigma; cut off at `low` and `high`."""

    median: Positive
    sigma: Annotated[float, msgspec.Meta(ge=0)]
    low: float = 1.0
    high: float = math.inf

    def draw(self, rng: random.Random) -> float:
        return min(max(self.median * math.exp(rng.gauss(0.0, self.sigma)), self.low), self.high)

    @property
    def mean(self) -> float:
        """Without regard to the cut-offs."""
        return self.median * math.exp(self.sigma**2 / 2)


class Bounded(msgspec.Struct, frozen=True, tag="bounded"):
    """Between two ends with a given mean, which is often all that a paper says: a scaled beta distribution."""

    low: float
    high: float
    average: float
    concentration: Positive = 4.0
    """The larger, the nearer to the mean."""

    def __post_init__(self) -> None:
        if not self.low < self.average < self.high:
            raise ValueError(f"a mean of {self.average} does not lie between {self.low} and {self.high}")

    def draw(self, rng: random.Random) -> float:
        share = (self.average - self.low) / (self.high - self.low)
        drawn = rng.betavariate(share * self.concentration, (1 - share) * self.concentration)
        return self.low + (self.high - self.low) * drawn

    @property
    def mean(self) -> float:
        return self.average


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of a few values, equally often or by weight."""

    values: tuple[float, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.values or len(self.weights) not in (0, len(self.values)):
            raise ValueError("a choice needs values, and as many weights or none")
        if self.weights and (min(self.weights) < 0 or sum(self.weights) <= 0):
            raise ValueError("weights must not be below 0, nor all 0")

    def draw(self, rng: random.Random) -> float:
        if not self.weights:
            return self.values[int(rng.random() * len(self.values))]
        return rng.choices(self.values, cum_weights=tuple(accumulate(self.weights)))[0]

    @property
    def mean(self) -> float:
        weights = self.weights or (1.0,) * len(self.values)
        return sum(value * weight for value, weight in zip(self.values, weights, strict=True)) / sum(weights)


Distribution = Constant | Uniform | LogNormal | Bounded | Choice


_KINDS: dict[str, type[Constant | Uniform | LogNormal | Bounded]] = {
    "constant": Constant,
    "uniform": Uniform,
    "lognormal": LogNormal,
    "bounded": Bounded,
}


def count(distribution: Distribution, rng: random.Random, least: int = 0) -> int:
    """A whole number, rounded, at least `least`."""
    return max(least, round(distribution.draw(rng)))


def parse_distribution(text: str) -> Distribution:
    """Raises `ConfigError`."""
    kind, _, rest = text.strip().partition(":")
    try:
        if not rest:
            return Constant(float(kind))
        if kind == "choice":
            pairs = [pair.partition("=") for pair in rest.split(",")]
            weights = tuple(float(weight) for _, sign, weight in pairs if sign)
            return Choice(tuple(float(value) for value, _, _ in pairs), weights)
        names = _KINDS[kind].__struct_fields__
        numbers = dict(zip(names, map(float, rest.split(":")), strict=False))
        if rest.count(":") >= len(names):
            raise ValueError(f"{kind} takes {', '.join(names)}")
        return msgspec.convert(numbers, _KINDS[kind])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{text!r} is no distribution ({error}); write 10, uniform:4:21, lognormal:MEDIAN:SIGMA[:LOW:HIGH], "
            "bounded:LOW:HIGH:MEAN or choice:1=0.7,2=0.3"
        ) from error
