"""PrefillScheduler: which prompts, or which chunks of them, the next forward computes.

    submit -> waiting -> (chunked ->) running -> ran -> held until its KV is sent -> release

First come first served under a budget of tokens. A prompt that does not fit into what is left of a chunk is cut, and
its rest goes first in the next step; at most one prompt is cut at a time. As SGLang does it (`PrefillAdder`), so that
emulated and simulated workers behave like real ones.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sgl_epd.config import option
from sgl_epd.errors import ConfigError, PayloadTooLargeError, UnavailableError
from sgl_epd.scheduler.kv import KVBlocks

_GROUP = "prefill scheduler"


@dataclasses.dataclass(frozen=True)
class PrefillSchedulerConfig:
    """SGLang's names and, but for the queue's bound, its defaults on a large device."""

    chunked_prefill_size: int = option(8192, "Tokens in one step; longer prompts are cut. -1: never cut", group=_GROUP)
    max_prefill_tokens: int = option(16384, "Tokens in one step; a longer prompt runs alone", group=_GROUP)
    prefill_max_requests: int = option(256, "Requests in one step", group=_GROUP)
    max_prefill_waiting: int = option(4096, "Requests that may wait; beyond it 503", group=_GROUP)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 1 and not (field.name == "chunked_prefill_size" and value == -1):
                raise ConfigError(f"--{field.name.replace('_', '-')} must be above 0, not {value}")


@dataclasses.dataclass(eq=False, slots=True)
class PrefillJob:
    """One prompt."""

    request_id: str
    tokens: int
    arrived_at: float
    cached: int = 0
    """Tokens whose KV the worker holds already; at least one is computed anyway, for the first output token."""
    reserve: int = 0
    """Tokens to keep room for beyond the prompt, where the same worker decodes."""
    done: int = 0
    blocks: int = 0
    running: bool = False
    dropped: bool = False

    @property
    def left(self) -> int:
        return self.tokens - self.done


class Chunk(NamedTuple):
    """`new` tokens of a job after `past` ones that are there."""

    job: PrefillJob
    past: int
    new: int

    @property
    def last(self) -> bool:
        """With it the prompt is complete."""
        return self.past + self.new == self.job.tokens


class PrefillScheduler:
    def __init__(self, config: PrefillSchedulerConfig, kv: KVBlocks) -> None:
        self._config = config
        self._kv = kv
        self._waiting: deque[PrefillJob] = deque()
        self._cut: PrefillJob | None = None
        self.waiting_tokens = 0
        """To be computed for prompts that wait, and for the rest of a cut one."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        """Something is to be computed, if KV allows."""
        return bool(self._waiting) or self._cut is not None

    def submit(self, job: PrefillJob) -> None:
        """Raises `PayloadTooLargeError` if the prompt can never fit and `UnavailableError` if the queue is full."""
        if job.tokens < 1:
            raise ValueError(f"a prompt of {job.tokens} tokens")
        if self._kv.blocks_for(job.tokens + job.reserve) > self._kv.total:
            room = self._kv.total * self._kv.block_tokens
            raise PayloadTooLargeError(f"a prompt of {job.tokens} tokens; this worker's KV cache holds {room}")
        if len(self._waiting) >= self._config.max_prefill_waiting:
            raise UnavailableError(f"{len(self._waiting)} prompts wait already", retry_after_s=1.0)
        job.done = min(job.cached, job.tokens - 1)
        self.waiting_tokens += job.left
        self._waiting.append(job)

    def next_batch(self) -> list[Chunk]:
        """At least one chunk if there is anything to do and KV for it. The caller runs it and calls `ran`."""
        batch: list[Chunk] = []
        chunk_room = self._config.chunked_prefill_size if self._config.chunked_prefill_size > 0 else 1 << 62
        prompt_room = self._config.max_prefill_tokens
        if self._cut is not None:
            new = min(self._cut.left, chunk_room)
            batch.append(Chunk(self._cut, self._cut.done, new))
            chunk_room, prompt_room = chunk_room - new, prompt_room - new
        while self._waiting and chunk_room > 0 and len(batch) < self._config.prefill_max_requests:
            job = self._waiting[0]
            new = min(job.left, chunk_room)
            if (batch and new > prompt_room) or not self._take(job):
                break
            self._waiting.popleft()
            batch.append(Chunk(job, job.done, new))
            chunk_room, prompt_room = chunk_room - new, prompt_room - new
        self._cut = next((chunk.job for chunk in batch if not chunk.last), None)
        for chunk in batch:
            chunk.job.running = True
        return batch

    def ran(self, batch: Sequence[Chunk]) -> list[PrefillJob]:
        """The forward is over. The prompts that are complete, which hold their KV until `release`."""
        complete = []
        for chunk in batch:
            job = chunk.job
            job.running = False
            if job.dropped:
                self._drop(job)
                continue
            job.done += chunk.new
            self.waiting_tokens -= chunk.new
            if not job.left:
                complete.append(job)
        return complete

    def release(self, job: PrefillJob) -> None:
        """Its KV is sent or not wanted any more. Once only."""
        self._kv.give(job.blocks)
        job.blocks = 0

    def hand_over(self, job: PrefillJob) -> int:
        """Another scheduler of the same worker takes over its blocks: how many."""
        blocks, job.blocks = job.blocks, 0
        return blocks

    def cancel(self, job: PrefillJob) -> None:
        """Nobody wants it. What is being computed is dropped when the step ends; a complete one is to be released."""
        if job.dropped or not job.left:
            return
        job.dropped = True
        self.waiting_tokens -= job.left
        if job.running:
            return
        if job is self._cut:
            self._drop(job)
        else:
            self._waiting.remove(job)

    def _take(self, job: PrefillJob) -> bool:
        blocks = self._kv.blocks_for(job.tokens + job.reserve)
        if not self._kv.take(blocks):
            return False
        job.blocks = blocks
        return True

    def _drop(self, job: PrefillJob) -> None:
        if self._cut is job:
            self._cut = None
        self.release(job)
