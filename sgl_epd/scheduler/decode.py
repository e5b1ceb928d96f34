"""DecodeScheduler: which answers grow by a token in the next step, and which wait for KV.

    submit -> waiting for KV -> (granted: its KV may be sent) -> ready -> running -> finished
                  ^                                                        |
                  '------------------------- retracted -------------------'

Grants are in order of arrival. A grant covers the prompt and a reserve for the answer; an answer that outgrows it takes
more, and if nothing is free the one that joined last is retracted, as in SGLang. Since a batch only changes when
somebody joins or something happens to a member, steps are counted and not walked through: a simulator leaps.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from itertools import count

from sgl_epd.config import option
from sgl_epd.errors import ConfigError, PayloadTooLargeError, UnavailableError
from sgl_epd.scheduler.kv import KVBlocks

_GROUP = "decode scheduler"
_GROWTH_TOKENS = 64
"""By so many an answer that outgrew its reserve is extended at a time, where there is room."""


@dataclasses.dataclass(frozen=True)
class DecodeSchedulerConfig:
    """SGLang's names where it has them."""

    max_running_requests: int = option(256, "Answers that grow at the same time", group=_GROUP)
    num_reserved_decode_tokens: int = option(512, "Room for an answer when it is admitted", group=_GROUP)
    max_decode_preallocated: int = option(
        512, "Requests that may have KV while their prefill is still on its way", group=_GROUP
    )
    max_decode_waiting: int = option(4096, "Requests that may wait for KV; beyond it 503", group=_GROUP)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"--{field.name.replace('_', '-')} must be above 0, not {getattr(self, field.name)}")


@dataclasses.dataclass(eq=False, slots=True)
class DecodeJob:
    """One answer. `context` tokens are there (the prompt and the first token); `left` are still to come."""

    request_id: str
    context: int
    left: int
    blocks: int = 0
    joined_step: int = -1
    """When it joined the batch; -1 while it is not in it."""
    number: int = 0
    """Of its joining."""
    ended: bool = False


class DecodeScheduler:
    def __init__(self, config: DecodeSchedulerConfig, kv: KVBlocks) -> None:
        self._config = config
        self._kv = kv
        self._waiting: deque[DecodeJob] = deque()
        self._ready: deque[DecodeJob] = deque()
        self._running: dict[DecodeJob, None] = {}
        """In order of joining."""
        self._granted = 0
        """Granted and not running yet."""
        self._step = 0
        self._events: list[tuple[int, int, int, DecodeJob]] = []
        """(step, kind, joining, job): then the job ends (0) or needs more KV (1). Stale ones name an older joining.

        Ends come first: they free KV, and whoever ends must not be retracted.
        """
        self._numbers = count(1)
        self.context_tokens = 0
        """In the KV caches of the batch."""
        self.retractions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Those without KV."""
        return len(self._waiting)

    def submit(self, job: DecodeJob) -> None:
        """Raises `PayloadTooLargeError` if it can never fit and `UnavailableError` if too many wait."""
        if job.context < 1 or job.left < 1:
            raise ValueError(f"an answer of {job.left} tokens after {job.context}")
        self.ensure_fits(job.context + job.left)
        if len(self._waiting) >= self._config.max_decode_waiting:
            raise UnavailableError(f"{len(self._waiting)} requests wait for KV already", retry_after_s=1.0)
        self._waiting.append(job)

    def ensure_fits(self, tokens: int) -> None:
        """Raises `PayloadTooLargeError` if so many, prompt and answer, can never be there at the same time."""
        if self._kv.blocks_for(tokens) > self._kv.total:
            room = self._kv.total * self._kv.block_tokens
            raise PayloadTooLargeError(f"{tokens} tokens; this worker's KV cache holds {room}")

    def grant(self) -> list[DecodeJob]:
        """Those that have KV now. Their contents may be sent; when they are there, call `ready`."""
        granted = []
        most = self._config.max_decode_preallocated
        while self._waiting and self._granted < most and self._take(self._waiting[0]):
            granted.append(self._waiting.popleft())
            self._granted += 1
        return granted

    def adopt(self, job: DecodeJob, blocks: int) -> bool:
        """Its KV is here already, in blocks that this worker's prefill took. False if the batch is full.

        The caller has checked with `ensure_fits` before the prefill.
        """
        if len(self._running) + len(self._ready) >= self._config.max_running_requests:
            return False
        job.blocks = blocks
        self._granted += 1
        self._ready.append(job)
        return True

    def ready(self, job: DecodeJob) -> None:
        self._ready.append(job)

    def join(self) -> int:
        """Between two steps: those that are ready join the batch while it has places. The size of the batch."""
        while self._ready and len(self._running) < self._config.max_running_requests:
            job = self._ready.popleft()
            self._granted -= 1
            job.joined_step, job.number = self._step, next(self._numbers)
            self._running[job] = None
            self.context_tokens += job.context
            self._plan(job)
        return len(self._running)

    def steps_until_change(self) -> int:
        """How many steps may pass before this batch changes by itself; at least 1 while it is not empty."""
        while self._events and self._stale(self._events[0]):
            heapq.heappop(self._events)
        return self._events[0][0] - self._step if self._events else 0

    def stepped(self, steps: int = 1) -> list[DecodeJob]:
        """So many steps are over, at most `steps_until_change`. The answers that are complete; their KV is free."""
        if not 0 < steps <= self.steps_until_change():
            raise ValueError(f"{steps} steps at once; the batch changes after {self.steps_until_change()}")
        self._step += steps
        self.context_tokens += steps * len(self._running)
        finished = []
        while self._events and self._events[0][0] <= self._step:
            event = heapq.heappop(self._events)
            job = event[3]
            if self._stale(event):
                continue
            self._settle(job)
            if job.left == 0:
                self._leave(job)
                finished.append(job)
            else:
                self._grow(job)
        return finished

    def cancel(self, job: DecodeJob) -> None:
        """Nobody wants it. Between two steps only; a job whose KV is on its way must be quiet first."""
        if job.ended:
            return
        job.ended = True
        if job in self._running:
            self._settle(job)
            self._leave(job)
        elif job in self._waiting:
            self._waiting.remove(job)
        else:
            self._granted -= 1
            if job in self._ready:
                self._ready.remove(job)
            self._give(job)

    def progress(self, job: DecodeJob) -> int:
        """Tokens that are still to come for a member of the batch."""
        return job.left - (self._step - job.joined_step) if job.joined_step >= 0 else job.left

    def _plan(self, job: DecodeJob) -> None:
        """The next step at which something happens to it: its end, or the last of its blocks is full."""
        room = job.blocks * self._kv.block_tokens - job.context
        ends = job.left <= room
        steps = job.left if ends else max(room, 1)
        heapq.heappush(self._events, (self._step + steps, 0 if ends else 1, job.number, job))

    def _stale(self, event: tuple[int, int, int, DecodeJob]) -> bool:
        return event[3].ended or event[3].number != event[2] or event[3].joined_step < 0

    def _settle(self, job: DecodeJob) -> None:
        """Bring its own counts up to the current step."""
        passed = self._step - job.joined_step
        job.left -= passed
        job.context += passed
        job.joined_step = self._step

    def _leave(self, job: DecodeJob) -> None:
        del self._running[job]
        self.context_tokens -= job.context
        job.ended, job.joined_step = True, -1
        self._give(job)

    def _grow(self, job: DecodeJob) -> None:
        """More blocks, from whoever joined last if need be, which may be the job itself."""
        wanted = max(1, min(job.left, _GROWTH_TOKENS) // self._kv.block_tokens)
        if not self._kv.take(wanted):
            wanted = 1
            while not self._kv.take(wanted):
                last = next(reversed(self._running))
                self._retract(last)
                if last is job:
                    return
        job.blocks += wanted
        self._plan(job)

    def _retract(self, job: DecodeJob) -> None:
        """Back to the head of the queue with what it has; it is granted again when there is room."""
        self._settle(job)
        del self._running[job]
        self.context_tokens -= job.context
        job.joined_step = -1
        self._give(job)
        self._waiting.appendleft(job)
        self.retractions += 1

    def _take(self, job: DecodeJob) -> bool:
        reserve = min(job.left, self._config.num_reserved_decode_tokens)
        blocks = self._kv.blocks_for(job.context + reserve)
        if not self._kv.take(blocks):
            return False
        job.blocks = blocks
        return True

    def _give(self, job: DecodeJob) -> None:
        self._kv.give(job.blocks)
        job.blocks = 0
