"""Laws of the three orders, and random lives of the scheduler against a plain model."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sgl_epd.cache.in_flight import Waiter
from sgl_epd.errors import ConfigError, UnavailableError
from sgl_epd.protocol.items import Modality
from sgl_epd.scheduler.encode import EncodeScheduler, EncodeSchedulerConfig, Work
from sgl_epd.scheduler.order import Job, Order, Stage, priority_of

AGING, RATE = 100.0, 50.0
MAX_ITEMS, MAX_PATCHES, MAX_TOKENS = 3, 100, 40
CONFIG = EncodeSchedulerConfig(
    max_encode_batch_items=MAX_ITEMS,
    max_encode_batch_patches=MAX_PATCHES,
    max_encode_ready_items=6,
    max_encode_waiting_items=20,
    encode_aging=AGING,
)

jobs = st.builds(
    Job,
    key=st.just(b"k"),
    modality=st.just(Modality.IMAGE),
    patches=st.integers(1, 5000),
    arrived_at=st.floats(0, 100),
    number=st.just(0),
    deadline_at=st.floats(0, 200),
)


@given(jobs, jobs)
def test_fcfs_is_the_order_of_arrival(a: Job, b: Job) -> None:
    place = priority_of(Order.FCFS, AGING)
    assert (place(a, RATE) < place(b, RATE)) == (a.arrived_at < b.arrived_at)


@given(jobs, jobs)
def test_shortest_first_is_by_size_and_never_past_the_aging_bound(a: Job, b: Job) -> None:
    place = priority_of(Order.SHORTEST, AGING)
    if a.arrived_at <= b.arrived_at and a.patches < b.patches:
        assert place(a, RATE) < place(b, RATE)
    if b.arrived_at > a.arrived_at + a.patches / AGING:
        assert place(a, RATE) < place(b, RATE)


@given(jobs, jobs)
def test_slack_is_deadline_minus_own_work(a: Job, b: Job) -> None:
    place = priority_of(Order.SLACK, AGING)
    slack_a, slack_b = a.deadline_at - a.patches / RATE, b.deadline_at - b.patches / RATE
    assert (place(a, RATE) < place(b, RATE)) == (slack_a < slack_b)
    assert (place(a, 0.0) < place(b, 0.0)) == (a.deadline_at < b.deadline_at)


def test_shortest_first_without_aging_is_refused() -> None:
    with pytest.raises(ConfigError, match="large items starve"):
        priority_of(Order.SHORTEST, 0.0)


@pytest.mark.parametrize("order", list(Order))
def test_a_large_item_is_served_however_many_small_ones_keep_coming(order: Order) -> None:
    """Small items come exactly as fast as they are encoded, for ever: the large one still runs, by its bound."""
    config = dataclasses.replace(CONFIG, encode_order=order.value, max_encode_batch_items=1)
    queue = EncodeScheduler(config, max_batch_tokens=MAX_TOKENS)
    large, now = Work("large", b"large", Modality.IMAGE, 500), 0.0
    queue.submit("large", [large], now, deadline_at=5.0)
    for number in range(10_000):
        queue.submit(str(number), [Work("i", str(number).encode(), Modality.IMAGE, 1)], now, deadline_at=now + 2.0)
        job = queue.next_to_prepare()
        assert job is not None
        queue.prepared(job, job.patches, 1)
        (job,) = queue.next_batch()
        if job.key == b"large":
            break
        queue.ran([job], seconds=0.02)
        queue.finish(job)
        now += 0.02
    bound = {Order.FCFS: 0.0, Order.SHORTEST: 500 / AGING, Order.SLACK: 5.0}[order]
    assert job.key == b"large"
    assert now <= bound + 0.02


class Machine(RuleBasedStateMachine):
    order = Order.FCFS

    def __init__(self) -> None:
        super().__init__()
        config = dataclasses.replace(CONFIG, encode_order=self.order.value)
        self.queue = EncodeScheduler(config, max_batch_tokens=MAX_TOKENS)
        self.place = priority_of(self.order, AGING)
        self.now = 0.0
        self.requests = 0
        self.waiting: Counter[tuple[bytes, Waiter]] = Counter()
        """Who still has to hear of what."""
        self.preparing: list[Job] = []
        self.running: list[Job] = []

    @rule(names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4), slo=st.sampled_from([None, 0.1, 9.0]))
    def submit(self, names: list[str], slo: float | None) -> None:
        self.requests += 1
        request = str(self.requests)
        modality = {name: Modality.VIDEO if name in "gh" else Modality.IMAGE for name in names}
        items = [Work(str(i), n.encode(), modality[n], 30 * (ord(n) - 96)) for i, n in enumerate(names)]
        before = len(self.queue.waiting)
        try:
            self.queue.submit(request, items, self.now, None if slo is None else self.now + slo)
        except UnavailableError:
            assert before
            assert len(self.queue.waiting) == before
            return
        self.waiting.update((item.key, Waiter(request, item.item_id)) for item in items)

    @rule()
    def prepare(self) -> None:
        queued = [job for job in self.queue.waiting if job.stage is Stage.QUEUED]
        ahead = len(self.queue.waiting) - len(queued)
        job = self.queue.next_to_prepare()
        assert (job is None) == (not queued or ahead >= CONFIG.max_encode_ready_items)
        if job is not None:
            assert self.rank(job) == min(self.rank(each) for each in queued)
            self.preparing.append(job)

    @precondition(lambda self: self.preparing)
    @rule(data=st.data(), tokens=st.integers(1, 60))
    def prepared(self, data: st.DataObject, tokens: int) -> None:
        job = self.preparing.pop(data.draw(st.integers(0, len(self.preparing) - 1)))
        wanted = job in self.queue.waiting
        assert self.queue.prepared(job, job.patches, tokens) == wanted

    @rule(seconds=st.sampled_from([0.01, 1.0]))
    def batch(self, seconds: float) -> None:
        ready = sorted((job for job in self.queue.waiting if job.stage is Stage.READY), key=self.rank)
        batch = self.queue.next_batch()
        assert bool(batch) == bool(ready)
        if not batch:
            return
        same = [job for job in ready if job.modality is ready[0].modality]
        assert batch == same[: len(batch)], "not the next ones in order"
        assert self.within(batch) or len(batch) == 1
        if len(batch) < len(same):
            assert not self.within(same[: len(batch) + 1]), "the next one would have fitted"
        self.running += batch
        self.queue.ran(batch, seconds)
        self.now += seconds

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        job = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        heard = Counter((job.key, waiter) for waiter in self.queue.finish(job))
        expected = Counter({entry: n for entry, n in self.waiting.items() if entry[0] == job.key})
        assert heard == expected
        self.waiting -= heard

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted({waiter.request_id for _, waiter in self.waiting})))
        self.waiting = Counter({e: n for e, n in self.waiting.items() if e[1].request_id != request})
        for job in self.queue.cancel(request):
            assert job not in self.queue.waiting
            assert not any(key == job.key for key, _ in self.waiting)

    @invariant()
    def every_waiter_has_a_job_and_every_job_that_waits_has_a_waiter(self) -> None:
        wanted = {key for key, _ in self.waiting}
        waiting = [job.key for job in self.queue.waiting]
        assert len(waiting) == len(set(waiting))
        assert set(waiting) <= wanted
        assert wanted <= set(waiting) | {job.key for job in self.queue.running}
        assert self.queue.running == [job for job in self.queue.running if job in self.running]
        assert len(self.queue.running) == len(self.running)

    def rank(self, job: Job) -> tuple[float, int]:
        return self.place(job, self.queue.patches_per_s), job.number

    def within(self, batch: list[Job]) -> bool:
        patches, tokens = sum(job.patches for job in batch), sum(job.num_tokens for job in batch)
        return len(batch) <= MAX_ITEMS and patches <= MAX_PATCHES and tokens <= MAX_TOKENS

    def teardown(self) -> None:
        """Whatever happened, running dry leaves nothing behind."""
        while self.preparing:
            job = self.preparing.pop()
            self.queue.prepared(job, job.patches, 1)
        for _ in range(1000):
            for job in self.running:
                for waiter in self.queue.finish(job):
                    self.waiting[job.key, waiter] -= 1
            while (next_job := self.queue.next_to_prepare()) is not None:
                self.queue.prepared(next_job, next_job.patches, 1)
            self.running = self.queue.next_batch()
            if not self.running:
                break
        assert (self.queue.waiting, self.queue.running) == ([], [])
        assert not +self.waiting


class ShortestMachine(Machine):
    order = Order.SHORTEST


class SlackMachine(Machine):
    order = Order.SLACK


quick = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
Machine.TestCase.settings = ShortestMachine.TestCase.settings = SlackMachine.TestCase.settings = quick
TestFcfs, TestShortest, TestSlack = Machine.TestCase, ShortestMachine.TestCase, SlackMachine.TestCase
