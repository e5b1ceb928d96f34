"""What a simulated cluster consists of: workers of some shape, their limits, and the router's policies."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

from sgl_epd.errors import ConfigError
from sgl_epd.planner.memory import MemorySettings
from sgl_epd.planner.stages import EPD, PD, D, E, P, Stage, Stages, letters, parse_stages
from sgl_epd.scheduler.decode import DecodeSchedulerConfig
from sgl_epd.scheduler.encode import EncodeSchedulerConfig
from sgl_epd.scheduler.prefill import PrefillSchedulerConfig


@dataclasses.dataclass(frozen=True, order=True)
class WorkerPlan:
    """One worker on `tp` devices."""

    stages: Stages
    tp: int = 1

    def __str__(self) -> str:
        return letters(self.stages) + (f"@{self.tp}" if self.tp > 1 else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """A configuration as the planner weighs it. Policies have the router's names and defaults."""

    workers: tuple[WorkerPlan, ...]
    encode_policy: str = "consistent_hashing"
    prefill_policy: str = "cache_aware"
    decode_policy: str = "least_load"
    encode: EncodeSchedulerConfig = dataclasses.field(default_factory=EncodeSchedulerConfig)
    prefill: PrefillSchedulerConfig = dataclasses.field(default_factory=PrefillSchedulerConfig)
    decode: DecodeSchedulerConfig = dataclasses.field(default_factory=DecodeSchedulerConfig)
    memory: MemorySettings = dataclasses.field(default_factory=MemorySettings)
    spread: bool = True
    """The items of a request go to several encoders (intra-request parallelism), not all to one."""
    deduplicate: bool = True
    """Equal items are encoded once and found again by their content."""
    preprocess_cores: int = 8
    """CPU cores of one worker that decode and resize; 0: the worker does it itself, before each forward."""

    kv_tokens: int | None = None
    """KV cache of each worker, as its engine reports it. None: what the memory model leaves for it."""

    def __post_init__(self) -> None:
        shapes = {worker.stages for worker in self.workers}
        problem = _problem(shapes)
        if problem:
            raise ConfigError(f"{self.name}: {problem}")
        if self.preprocess_cores < 0:
            raise ConfigError(f"{self.preprocess_cores} cores for preprocessing; 0 or more")

    @property
    def devices(self) -> int:
        return sum(worker.tp for worker in self.workers)

    @property
    def name(self) -> str:
        """`6E1P1D`, or `8EPD` where every worker does all."""
        counts = Counter(self.workers)
        order = sorted(counts, key=lambda worker: ([s not in worker.stages for s in Stage], worker.tp))
        return "+".join(f"{counts[worker]}{worker}" for worker in order)

    def of(self, stage: Stage) -> list[int]:
        """Which workers a request can go to for this stage, as the router's pools have them."""
        own = [i for i, worker in enumerate(self.workers) if worker.stages == frozenset({stage})]
        return own or [i for i, worker in enumerate(self.workers) if stage in worker.stages]


def _problem(shapes: set[Stages]) -> str:
    """Why requests could not pass through such workers; "" if they can."""
    missing = EPD - frozenset[Stage]().union(*shapes)
    if missing:
        return f"nobody would {' or '.join(sorted(missing))}"
    prefills = {shape for shape in shapes if Stage.PREFILL in shape}
    if len(prefills) > 1 or any(shape not in (E, D) for shape in shapes - prefills):
        return "prefill workers must be of one shape, beside encode and decode workers"
    (prefill,) = prefills
    if (prefill & E and E in shapes) or (prefill & D and D in shapes):
        return "a stage is either with prefill or on workers of its own"
    return "" if prefill in (P, PD, EPD, E | P) else f"no worker is of shape {letters(prefill)}"


def parse_cluster(text: str, **settings: object) -> ClusterPlan:
    """`6E1P1D`, `3E5PD`, `8EPD`, `2E1P@2+1D`: counts, stages, and devices of a worker behind `@`.

    Raises `ConfigError`.
    """
    workers: list[WorkerPlan] = []
    for part in text.split("+"):
        found = re.findall(r"(\d+)([EPD]+)(?:@(\d+))?", part)
        if "".join(f"{n}{shape}{'@' + tp if tp else ''}" for n, shape, tp in found) != part or not part:
            raise ConfigError(f"{text!r} is no cluster; write for example 6E1P1D, 3E+5PD, 8EPD or 2E+1P@2+1D")
        for number, shape, tp in found:
            workers += [WorkerPlan(parse_stages(shape), int(tp or 1))] * int(number)
    return dataclasses.replace(ClusterPlan(workers=tuple(workers)), **settings)  # type: ignore[arg-type]
