"""When requests come: endless times from 0 on, at a mean rate that the caller gives.

Shapes are independent of the rate: the same seed at twice the rate gives the same sequence, twice as dense (on-off
phases keep their lengths). Candidates of a search thus meet the same luck.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """Independent requests of many users."""

    def times(self, rate: float, rng: random.Random) -> Iterator[float]:
        now = 0.0
        while True:
            now += rng.expovariate(1.0) / rate
            yield now


class Gamma(msgspec.Struct, frozen=True, tag="gamma"):
    """Bursty (or, below 1, regular) by the coefficient of variation of the gaps; 1 is Poisson."""

    cv: Positive

    def times(self, rate: float, rng: random.Random) -> Iterator[float]:
        shape, now = 1.0 / self.cv**2, 0.0
        while True:
            now += rng.gammavariate(shape, 1.0 / shape) / rate
            yield now


class OnOff(msgspec.Struct, frozen=True, tag="on_off"):
    """Bursts: Poisson while on, a trickle or nothing while off; both phases last exponentially long.

    The mean over both is the rate asked for. `quiet` is the rate while off as a share of that while on.
    """

    on_s: Positive
    off_s: Positive
    quiet: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0

    def times(self, rate: float, rng: random.Random) -> Iterator[float]:
        # Phases have a stream of their own: they must not move when the rate changes.
        phases = random.Random(rng.getrandbits(64))
        duty = (self.on_s + self.quiet * self.off_s) / (self.on_s + self.off_s)
        busy = rate / duty
        start, on = 0.0, phases.random() < self.on_s / (self.on_s + self.off_s)
        owed = rng.expovariate(1.0)
        while True:
            length = phases.expovariate(1.0 / (self.on_s if on else self.off_s))
            speed, at = busy if on else busy * self.quiet, start
            # In units of mean gaps this is one Poisson process, stretched by the speed of the phase.
            while speed and owed <= (start + length - at) * speed:
                at += owed / speed
                yield at
                owed = rng.expovariate(1.0)
            owed -= (start + length - at) * speed
            start, on = start + length, not on


class Regular(msgspec.Struct, frozen=True, tag="regular"):
    """One every 1 / rate seconds."""

    def times(self, rate: float, rng: random.Random) -> Iterator[float]:
        number = 0
        while True:
            yield number / rate
            number += 1


class AtOnce(msgspec.Struct, frozen=True, tag="at_once"):
    """All at 0: offline work. The rate does not matter."""

    def times(self, rate: float, rng: random.Random) -> Iterator[float]:
        while True:
            yield 0.0


Arrivals = Poisson | Gamma | OnOff | Regular | AtOnce
