"""EncodeScheduler: which items an encoder preprocesses and encodes next, and for whom.

    submit -> queued -> preparing -> ready -> running -> (finish | fail)

Two stages are fed at the same time, the preprocessing pool (`next_to_prepare`) and the forward (`next_batch`), in the
same order. The queue is bounded; identical items in flight are one job; a job that nobody waits for is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sgl_epd.cache.in_flight import InFlight, Waiter
from sgl_epd.config import option
from sgl_epd.errors import ConfigError, UnavailableError
from sgl_epd.protocol.items import Modality
from sgl_epd.scheduler.order import Job, Order, Stage, priority_of
from sgl_epd.scheduler.rate import RateMeter

_GROUP = "encode scheduler"
_RETRY_AFTER_S = (1.0, 60.0)


@dataclasses.dataclass(frozen=True)
class EncodeSchedulerConfig:
    """Flags of an encode worker's queue and batches."""

    encode_order: str = option(
        Order.FCFS.value,
        "Order of items: first come first served, shortest first with aging, or least slack to the TTFT target",
        group=_GROUP,
        choices=tuple(Order),
    )
    encode_aging: float = option(
        4096.0, "Shortest first: patches that one second of waiting makes up for", group=_GROUP
    )
    encode_slo_secs: float = option(2.0, "Least slack: target for an item of a request that names none", group=_GROUP)
    max_encode_batch_items: int = option(32, "Items in one forward", group=_GROUP)
    max_encode_batch_patches: int = option(65536, "Patches in one forward; a larger item runs by itself", group=_GROUP)
    max_encode_waiting_items: int = option(1024, "Items that may wait; beyond it 503 with Retry-After", group=_GROUP)
    max_encode_waiting_patches: int = option(4194304, "Patches that may wait, likewise", group=_GROUP)
    max_encode_ready_items: int = option(64, "Items preprocessed ahead of the forward", group=_GROUP)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) and value <= 0:
                raise ConfigError(f"--{field.name.replace('_', '-')} must be above 0, not {value}")


class Work(NamedTuple):
    """One item of a request. `patches` may be an estimate until the item is prepared."""

    item_id: str
    key: bytes
    modality: Modality
    patches: int


class EncodeScheduler:
    """`max_batch_tokens` are the embedding rows that can be reserved at once; `unbatched` modalities run one by one."""

    def __init__(
        self,
        config: EncodeSchedulerConfig,
        *,
        max_batch_tokens: int,
        unbatched: frozenset[Modality] = frozenset(),
    ) -> None:
        self._config = config
        self._max_batch_tokens = max_batch_tokens
        self._unbatched = unbatched
        self._priority = priority_of(Order(config.encode_order), config.encode_aging)
        self._meter = RateMeter()
        self._jobs: dict[bytes, Job] = {}
        self._in_flight = InFlight()
        self._submitted = 0
        self.joined_items = 0
        """Items that were encoded along with an identical one."""

    @property
    def patches_per_s(self) -> float:
        return self._meter.rate

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.stage is not Stage.RUNNING]

    @property
    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.stage is Stage.RUNNING]

    def submit(self, request_id: str, items: Sequence[Work], now: float, deadline_at: float | None = None) -> None:
        """Queue all items of a request or none. Raises `UnavailableError` if too much waits already."""
        fresh = {item.key: item for item in items if item.key not in self._jobs}
        self._admit(fresh.values())
        deadline_at = now + self._config.encode_slo_secs if deadline_at is None else deadline_at
        for item in items:
            job = self._jobs.get(item.key)
            if job is None:
                self._submitted += 1
                job = Job(item.key, item.modality, item.patches, now, self._submitted, deadline_at)
                self._jobs[item.key] = job
            else:
                self.joined_items += 1
            job.deadline_at = min(job.deadline_at, deadline_at)
            self._in_flight.join(item.key, Waiter(request_id, item.item_id))

    def next_to_prepare(self) -> Job | None:
        """The next one for the preprocessing pool, unless enough is ready or on its way there."""
        ahead = sum(job.stage in (Stage.PREPARING, Stage.READY) for job in self._jobs.values())
        queued = [job for job in self._jobs.values() if job.stage is Stage.QUEUED]
        if not queued or ahead >= self._config.max_encode_ready_items:
            return None
        job = min(queued, key=self._place)
        job.stage = Stage.PREPARING
        return job

    def prepared(self, job: Job, patches: int, num_tokens: int) -> bool:
        """Its true size is known. False if nobody wants it any more: the caller throws the pixels away."""
        if job.stage is not Stage.PREPARING:
            return False
        job.patches, job.num_tokens, job.stage = patches, num_tokens, Stage.READY
        return True

    def next_batch(self) -> list[Job]:
        """One modality's next items in order, as many as the budgets allow but at least one, if any is ready."""
        ready = sorted((job for job in self._jobs.values() if job.stage is Stage.READY), key=self._place)
        batch: list[Job] = []
        for job in ready:
            if batch and job.modality is not batch[0].modality:
                continue
            if batch and not self._fits(batch, job):
                break
            batch.append(job)
        for job in batch:
            job.stage = Stage.RUNNING
        return batch

    def ran(self, batch: Sequence[Job], seconds: float) -> None:
        """A forward over `batch` took so long; the batch still has to be finished or failed, job by job."""
        self._meter.observe(sum(job.patches for job in batch), seconds)

    def finish(self, job: Job) -> tuple[Waiter, ...]:
        """The job is over, well or not: all who waited for it. Empty if they have left."""
        if job.stage is Stage.ENDED:
            return ()
        del self._jobs[job.key]
        job.stage = Stage.ENDED
        return self._in_flight.finish(job.key)

    def cancel(self, request_id: str) -> tuple[Job, ...]:
        """Nobody waits for this request. The jobs dropped thereby; what is running goes on and may find new takers."""
        dropped = []
        for key in self._in_flight.leave(request_id):
            job = self._jobs[key]
            if job.stage is not Stage.RUNNING:
                del self._jobs[key]
                job.stage = Stage.ENDED
                dropped.append(job)
        return tuple(dropped)

    def waiters(self, job: Job) -> tuple[Waiter, ...]:
        return self._in_flight.waiters(job.key)

    def _admit(self, fresh: Collection[Work]) -> None:
        """What fits into no queue is taken when nothing waits: otherwise it could never be served."""
        config = self._config
        waiting = self.waiting
        if not waiting or not fresh:
            return
        patches = sum(job.patches for job in waiting)
        too_many = len(waiting) + len(fresh) > config.max_encode_waiting_items
        too_much = patches + sum(item.patches for item in fresh) > config.max_encode_waiting_patches
        if too_many or too_much:
            raise UnavailableError(
                f"{len(waiting)} items of {patches} patches wait to be encoded already",
                retry_after_s=self._drained_in_s(patches),
            )

    def _drained_in_s(self, patches: int) -> float:
        least, most = _RETRY_AFTER_S
        return min(max(patches / self._meter.rate, least), most) if self._meter.rate else least

    def _fits(self, batch: Sequence[Job], job: Job) -> bool:
        together = [*batch, job]
        return (
            job.modality not in self._unbatched
            and len(together) <= self._config.max_encode_batch_items
            and sum(each.patches for each in together) <= self._config.max_encode_batch_patches
            and sum(each.num_tokens for each in together) <= self._max_batch_tokens
        )

    def _place(self, job: Job) -> tuple[float, int]:
        return self._priority(job, self._meter.rate), job.number
