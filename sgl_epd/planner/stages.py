"""Which stages a worker runs. Any set of them is a shape: E, P, D, E+P, P+D, or all three in one."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sgl_epd.errors import ConfigError


class Stage(StrEnum):
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"


Stages = frozenset[Stage]

E: Stages = frozenset({Stage.ENCODE})
P: Stages = frozenset({Stage.PREFILL})
D: Stages = frozenset({Stage.DECODE})
EP: Stages = E | P
PD: Stages = P | D
EPD: Stages = E | P | D
SHAPES: tuple[Stages, ...] = (E, P, D, EP, PD, EPD)


def letters(stages: Iterable[Stage]) -> str:
    """`EP` for encode and prefill, in the order in which a request passes them."""
    chosen = set(stages)
    return "".join(stage.value[0].upper() for stage in Stage if stage in chosen)


def parse_stages(text: str) -> Stages:
    """The reverse of `letters`; a role's name is understood as well. Raises `ConfigError`."""
    if text == "mixed":
        return EPD
    stages = {stage for stage in Stage if stage == text} or {s for s in Stage if s.value[0].upper() in text}
    if not stages or (text not in set(Stage) and letters(stages) != text):
        raise ConfigError(f"{text!r} names no stages; write encode, prefill, decode, mixed, or letters such as E or PD")
    return frozenset(stages)
