"""Prefill batches: budgets, cut prompts, KV, and random traffic that must neither lose nor repeat a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sgl_epd.errors import ConfigError, PayloadTooLargeError, UnavailableError
from sgl_epd.scheduler.kv import KVBlocks
from sgl_epd.scheduler.prefill import PrefillJob, PrefillScheduler, PrefillSchedulerConfig


def scheduler(kv: int = 100_000, block: int = 1, **flags: int) -> PrefillScheduler:
    return PrefillScheduler(PrefillSchedulerConfig(**flags), KVBlocks(kv, block))


def job(name: str, tokens: int, cached: int = 0) -> PrefillJob:
    return PrefillJob(name, tokens, 0.0, cached)


def shape(batch: list) -> list[tuple[str, int, int]]:  # type: ignore[type-arg]
    return [(chunk.job.request_id, chunk.past, chunk.new) for chunk in batch]


def test_short_prompts_share_a_step() -> None:
    prefill = scheduler(chunked_prefill_size=1000)
    for name, tokens in (("a", 300), ("b", 400), ("c", 200)):
        prefill.submit(job(name, tokens))
    batch = prefill.next_batch()
    assert shape(batch) == [("a", 0, 300), ("b", 0, 400), ("c", 0, 200)]
    assert [done.request_id for done in prefill.ran(batch)] == ["a", "b", "c"]
    assert not prefill
    assert prefill.waiting_tokens == 0


def test_a_long_prompt_is_cut_and_goes_on_first() -> None:
    prefill = scheduler(chunked_prefill_size=1000)
    for name, tokens in (("a", 300), ("long", 1900), ("c", 200)):
        prefill.submit(job(name, tokens))
    steps = []
    while prefill:
        batch = prefill.next_batch()
        steps.append(shape(batch))
        prefill.ran(batch)
    assert steps == [[("a", 0, 300), ("long", 0, 700)], [("long", 700, 1000)], [("long", 1700, 200), ("c", 0, 200)]]


def test_without_chunks_a_long_prompt_runs_alone() -> None:
    prefill = scheduler(chunked_prefill_size=-1, max_prefill_tokens=1000)
    for name, tokens in (("a", 300), ("long", 1900), ("c", 200)):
        prefill.submit(job(name, tokens))
    batches = [prefill.next_batch() for _ in range(3)]
    assert [shape(batch) for batch in batches] == [[("a", 0, 300)], [("long", 0, 1900)], [("c", 0, 200)]]


def test_what_is_cached_is_not_computed() -> None:
    prefill = scheduler()
    prefill.submit(job("half", 300, cached=150))
    prefill.submit(job("whole", 300, cached=300))
    assert prefill.waiting_tokens == 151
    assert shape(prefill.next_batch()) == [("half", 150, 150), ("whole", 299, 1)]


def test_batch_of_one() -> None:
    prefill = scheduler(prefill_max_requests=1)
    prefill.submit(job("a", 10))
    prefill.submit(job("b", 10))
    assert shape(prefill.next_batch()) == [("a", 0, 10)]


def test_kv_is_held_until_release() -> None:
    kv = KVBlocks(1000, 16)
    prefill = PrefillScheduler(PrefillSchedulerConfig(), kv)
    prefill.submit(job("a", 600))
    prefill.submit(job("b", 600))
    (done,) = prefill.ran(prefill.next_batch())
    assert (kv.free, prefill.next_batch()) == (62 - 38, [])
    prefill.release(done)
    assert shape(prefill.next_batch()) == [("b", 0, 600)]


def test_refusals() -> None:
    prefill = scheduler(kv=1000, max_prefill_waiting=2)
    with pytest.raises(PayloadTooLargeError, match="a prompt of 1001 tokens; this worker's KV cache holds 1000"):
        prefill.submit(job("a", 1001))
    for name in "bc":
        prefill.submit(job(name, 10))
    with pytest.raises(UnavailableError, match="2 prompts wait already"):
        prefill.submit(job("d", 10))
    with pytest.raises(ConfigError, match="--prefill-max-requests must be above 0, not 0"):
        PrefillSchedulerConfig(prefill_max_requests=0)
    with pytest.raises(ConfigError, match="holds nothing"):
        KVBlocks(10, 16)


def test_blocks_do_not_come_back_twice() -> None:
    kv = KVBlocks(100)
    assert kv.take(60)
    kv.give(60)
    with pytest.raises(ValueError, match="1 blocks come back, 0 are out"):
        kv.give(1)


@pytest.mark.parametrize("when", ["waiting", "running", "cut"])
def test_cancel(when: str) -> None:
    kv = KVBlocks(10_000)
    prefill = PrefillScheduler(PrefillSchedulerConfig(chunked_prefill_size=1000), kv)
    gone, other = job("gone", 2500), job("other", 100)
    prefill.submit(gone)
    prefill.submit(other)
    if when != "waiting":
        batch = prefill.next_batch()
        if when == "cut":
            prefill.ran(batch)
    prefill.cancel(gone)
    prefill.cancel(gone)
    if when == "running":
        assert prefill.ran(batch) == []
    assert (kv.free, prefill.waiting_tokens) == (10_000, 100)
    assert prefill.ran(prefill.next_batch()) == [other]


class Machine(RuleBasedStateMachine):
    """Jobs come, steps run, KV is released late, jobs are cancelled at any time."""

    @initialize(chunk=st.sampled_from([-1, 7, 64]), most=st.integers(1, 5), block=st.sampled_from([1, 4]))
    def begin(self, chunk: int, most: int, block: int) -> None:
        config = PrefillSchedulerConfig(
            chunked_prefill_size=chunk, max_prefill_tokens=80, prefill_max_requests=most, max_prefill_waiting=20
        )
        self.kv = KVBlocks(200, block)
        self.config, self.prefill = config, PrefillScheduler(config, self.kv)
        self.jobs: list[PrefillJob] = []
        self.computed: dict[PrefillJob, int] = {}
        self.batch: list = []  # type: ignore[type-arg]
        self.held: list[PrefillJob] = []
        self.complete: list[PrefillJob] = []

    @rule(tokens=st.integers(1, 150), cached=st.integers(0, 150), reserve=st.integers(0, 30))
    def submit(self, tokens: int, cached: int, reserve: int) -> None:
        new = PrefillJob(str(len(self.jobs)), tokens, 0.0, min(cached, tokens), reserve)
        try:
            self.prefill.submit(new)
        except UnavailableError:
            assert self.prefill.num_waiting == 20
            return
        self.jobs.append(new)
        self.computed[new] = new.done

    @rule()
    def start(self) -> None:
        if self.batch:
            return
        self.batch = self.prefill.next_batch()
        assert len({chunk.job for chunk in self.batch}) == len(self.batch) <= self.config.prefill_max_requests
        assert sum(not chunk.last for chunk in self.batch) <= 1
        if self.config.chunked_prefill_size > 0:
            assert sum(chunk.new for chunk in self.batch) <= self.config.chunked_prefill_size
        for chunk in self.batch:
            assert chunk.past == self.computed[chunk.job]
            assert chunk.new > 0
            assert not chunk.job.dropped

    @rule()
    def end(self) -> None:
        complete = self.prefill.ran(self.batch)
        for chunk in self.batch:
            self.computed[chunk.job] += chunk.new
        for done in complete:
            assert self.computed[done] == done.tokens
        self.held += complete
        self.complete += complete
        self.batch = []

    @rule(index=st.integers(0, 10))
    def release(self, index: int) -> None:
        if self.held:
            self.prefill.release(self.held.pop(index % len(self.held)))

    @rule(index=st.integers(0, 50))
    def cancel(self, index: int) -> None:
        if self.jobs:
            self.prefill.cancel(self.jobs[index % len(self.jobs)])

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "kv"):
            return
        running = [chunk.job for chunk in self.batch]
        out = sum(each.blocks for each in {*self.held, *running, *self.jobs})
        assert self.kv.free == self.kv.total - out
        left = sum(each.left for each in self.jobs if not each.dropped)
        assert self.prefill.waiting_tokens == left

    def teardown(self) -> None:
        """Whatever is still wanted gets done, in order of arrival among those that were not dropped."""
        if not hasattr(self, "kv"):
            return
        for _ in range(2000):
            self.end()
            while self.held:
                self.release(0)
            if not self.prefill:
                break
            self.start()
            assert self.batch, "something waits, all KV is free, and no step is possible"
        wanted = [each for each in self.jobs if not each.dropped]
        assert [each for each in self.complete if not each.dropped] == wanted
        assert self.kv.free == self.kv.total


TestMachine = Machine.TestCase


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.integers(1, 300))
def test_every_step_but_the_last_is_full(prompts: list[int], chunk: int) -> None:
    prefill = scheduler(chunked_prefill_size=chunk, max_prefill_tokens=10**6)
    for number, tokens in enumerate(prompts):
        prefill.submit(job(str(number), tokens))
    sizes = []
    while prefill:
        batch = prefill.next_batch()
        sizes.append(sum(each.new for each in batch))
        prefill.ran(batch)
    assert sum(sizes) == sum(prompts)
    assert all(size == chunk for size in sizes[:-1])
