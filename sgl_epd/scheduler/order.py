"""In which order an encoder takes its items: three policies, each one number a job, the smallest first.

None of the numbers depends on the time of asking, so a job's place only ever improves as those before it are done, and
only finitely many later arrivals can come before it: nothing starves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum

from sgl_epd.errors import ConfigError
from sgl_epd.protocol.items import Modality


class Stage(StrEnum):
    QUEUED = "queued"
    PREPARING = "preparing"
    """With the preprocessing pool."""
    READY = "ready"
    """Preprocessed, waits for a forward."""
    RUNNING = "running"
    ENDED = "ended"


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """One distinct item to be encoded, for however many requests."""

    key: bytes
    modality: Modality
    patches: int
    arrived_at: float
    number: int
    deadline_at: float
    """When the first of those who wait wants it."""
    num_tokens: int = 0
    """Rows of the embedding; known once it is ready."""
    stage: Stage = Stage.QUEUED


class Order(StrEnum):
    FCFS = "fcfs"
    SHORTEST = "shortest"
    SLACK = "slack"


Priority = Callable[[Job, float], float]
"""(job, measured patches per second) -> number; equal ones keep the order of arrival."""


def fcfs(job: Job, rate: float) -> float:
    return job.arrived_at


def shortest(aging_patches_per_s: float) -> Priority:
    """Fewest patches first, but a second of waiting weighs as much as `aging_patches_per_s` patches.

    An item of n patches can be overtaken only by what arrives within n / `aging_patches_per_s` seconds after it.
    """
    if aging_patches_per_s <= 0:
        raise ConfigError(f"without aging large items starve: {aging_patches_per_s} patches per second is not above 0")

    def priority(job: Job, rate: float) -> float:
        return job.patches + aging_patches_per_s * job.arrived_at

    return priority


def slack(job: Job, rate: float) -> float:
    """The latest moment at which it can start and still be in time."""
    return job.deadline_at - (job.patches / rate if rate > 0 else 0.0)


def priority_of(order: Order, aging_patches_per_s: float) -> Priority:
    if order is Order.SHORTEST:
        return shortest(aging_patches_per_s)
    return fcfs if order is Order.FCFS else slack
