"""The interface of a policy, and what all of them may be configured with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView


class Choice(NamedTuple):
    """`pick` indexes the list of views; `cached` is the share of the prompt that the worker is thought to hold."""

    pick: int
    cached: float = 0.0
    reason: str = ""


class Policy(Protocol):
    name: str
    uses_load: bool
    """False spares the registry from bringing the views' load up to date."""

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        """`workers` is never empty, holds only workers that may take the request, and is in order of id."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Names and defaults of upstream's flags."""

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    max_tree_size: int = 2**26
    load_factor: float = 1.25
    bucket_adjust_interval_s: float = 5.0
    seed: int | None = None
