"""Decode batches: grants, growth, retraction; leaps give what single steps give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import ConfigError, PayloadTooLargeError, UnavailableError
from sgl_epd.scheduler.decode import DecodeJob, DecodeScheduler, DecodeSchedulerConfig
from sgl_epd.scheduler.kv import KVBlocks


def scheduler(kv: int = 100_000, block: int = 1, **flags: int) -> DecodeScheduler:
    return DecodeScheduler(DecodeSchedulerConfig(**flags), KVBlocks(kv, block))


def start(decode: DecodeScheduler, *jobs: DecodeJob) -> None:
    for job in jobs:
        decode.submit(job)
    for job in decode.grant():
        decode.ready(job)
    decode.join()


def test_a_batch_shrinks_as_answers_end() -> None:
    decode = scheduler()
    short, long = DecodeJob("short", 100, 3), DecodeJob("long", 50, 10)
    start(decode, short, long)
    assert (decode.num_running, decode.context_tokens, decode.steps_until_change()) == (2, 150, 3)
    assert decode.stepped(2) == []
    assert decode.context_tokens == 154
    assert (decode.progress(short), decode.progress(long)) == (1, 8)
    assert decode.stepped(1) == [short]
    assert (decode.context_tokens, decode.steps_until_change()) == (53, 7)
    assert decode.stepped(7) == [long]
    assert (decode.num_running, decode.context_tokens, decode.steps_until_change()) == (0, 0, 0)


def test_joining_between_steps() -> None:
    decode = scheduler()
    start(decode, DecodeJob("a", 10, 10))
    decode.stepped(4)
    late = DecodeJob("late", 10, 2)
    start(decode, late)
    assert decode.context_tokens == 24
    assert decode.stepped(2) == [late]


def test_leaps_end_where_the_batch_changes() -> None:
    decode = scheduler()
    with pytest.raises(ValueError, match="1 steps at once; the batch changes after 0"):
        decode.stepped()
    start(decode, DecodeJob("a", 10, 5))
    with pytest.raises(ValueError, match="6 steps at once; the batch changes after 5"):
        decode.stepped(6)


def test_kv_is_granted_in_order_and_limits_the_batch() -> None:
    decode = scheduler(kv=1000, num_reserved_decode_tokens=100)
    jobs = [DecodeJob("a", 500, 100), DecodeJob("b", 500, 100), DecodeJob("small", 10, 10)]
    for job in jobs:
        decode.submit(job)
    assert decode.grant() == [jobs[0]], "the small one does not overtake"
    decode.ready(jobs[0])
    decode.join()
    decode.stepped(100)
    assert decode.grant() == jobs[1:]


def test_most_running() -> None:
    """KV may be there for more: the others join as places become free."""
    decode = scheduler(max_running_requests=2)
    jobs = [DecodeJob(name, 10, left) for name, left in (("a", 5), ("b", 3), ("c", 4))]
    start(decode, *jobs)
    assert decode.num_running == 2
    assert decode.stepped(3) == [jobs[1]]
    assert decode.join() == 2
    assert decode.stepped(2) == [jobs[0]]
    assert decode.stepped(2) == [jobs[2]]


def test_most_preallocated() -> None:
    decode = scheduler(max_decode_preallocated=2)
    for name in "abc":
        decode.submit(DecodeJob(name, 10, 5))
    first, second = decode.grant()
    assert decode.grant() == []
    decode.ready(first)
    assert decode.grant() == [], "it has not joined yet"
    decode.join()
    assert [job.request_id for job in decode.grant()] == ["c"]
    assert second.blocks > 0


def test_whoever_joined_last_is_retracted() -> None:
    decode = scheduler(kv=40, num_reserved_decode_tokens=1)
    first, last = DecodeJob("first", 10, 25), DecodeJob("last", 10, 25)
    start(decode, first, last)
    steps = 0
    while decode.num_running == 2:
        decode.stepped(1)
        steps += 1
    assert (decode.retractions, decode.num_waiting) == (1, 1)
    assert last.context + last.left == 35
    assert decode.progress(last) == last.left
    ended = []
    for _ in range(200):
        for job in decode.grant():
            decode.ready(job)
        if not decode.join():
            break
        ended += decode.stepped(1)
    assert [job.request_id for job in ended] == ["first", "last"]
    assert first.context == last.context == 35


def test_who_ends_is_not_retracted() -> None:
    """At one step the first needs a block and the last ends, which gives it one."""
    decode = scheduler(kv=10, num_reserved_decode_tokens=1)
    first, last = DecodeJob("first", 3, 6), DecodeJob("last", 5, 1)
    start(decode, first, last)
    ended = []
    while decode.num_running:
        ended += decode.stepped(1)
    assert ended == [last, first]
    assert decode.retractions == 0


def test_adopted_from_prefill_of_the_same_worker() -> None:
    kv = KVBlocks(100)
    decode = DecodeScheduler(DecodeSchedulerConfig(max_running_requests=1), kv)
    assert kv.take(30)
    assert decode.adopt(DecodeJob("a", 10, 5), 15)
    assert not decode.adopt(DecodeJob("b", 10, 5), 15)
    decode.join()
    decode.stepped(5)
    assert kv.free == 85


def test_refusals() -> None:
    decode = scheduler(kv=100, max_decode_waiting=1)
    with pytest.raises(PayloadTooLargeError, match="101 tokens; this worker's KV cache holds 100"):
        decode.submit(DecodeJob("a", 50, 51))
    decode.submit(DecodeJob("a", 50, 50))
    with pytest.raises(UnavailableError, match="1 requests wait for KV already"):
        decode.submit(DecodeJob("b", 5, 5))
    with pytest.raises(ValueError, match="an answer of 0 tokens"):
        decode.submit(DecodeJob("c", 5, 0))
    with pytest.raises(ConfigError, match="--max-running-requests must be above 0"):
        DecodeSchedulerConfig(max_running_requests=0)


@pytest.mark.parametrize("when", ["waiting", "granted", "ready", "running"])
def test_cancel(when: str) -> None:
    kv = KVBlocks(1000)
    decode = DecodeScheduler(DecodeSchedulerConfig(max_running_requests=1, max_decode_preallocated=1), kv)
    gone, other = DecodeJob("gone", 10, 20), DecodeJob("other", 10, 2)
    decode.submit(gone)
    decode.submit(other)
    if when != "waiting":
        assert decode.grant() == [gone]
    if when != "waiting":
        assert kv.free < 1000
    if when in ("ready", "running"):
        decode.ready(gone)
    if when == "running":
        decode.join()
        decode.stepped(3)
    decode.cancel(gone)
    decode.cancel(gone)
    assert (kv.free, decode.context_tokens) == (1000, 0)
    start(decode)
    assert decode.stepped(2) == [other]


Traffic = list[tuple[int, int, int]]
"""(steps until it comes, context, output)."""
Ended = tuple[list[tuple[str, int]], int]
traffic = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=25)


def run(
    jobs: Traffic, kv: int, block: int, reserve: int, most: int, *, leap: bool
) -> tuple[list[tuple[str, int]], int]:
    """((name, step at which it ended) in order, retractions). Checks that no token is lost and no block leaks."""
    decode = DecodeScheduler(
        DecodeSchedulerConfig(max_running_requests=most, num_reserved_decode_tokens=reserve),
        blocks := KVBlocks(kv, block),
    )
    at, arrivals = 0, []
    for number, (gap, context, left) in enumerate(jobs):
        at += gap
        arrivals.append((at, DecodeJob(str(number), context, left), context + left))
    ended, step, total = [], 0, {job: size for _, job, size in arrivals}
    while len(ended) < len(jobs):
        while arrivals and arrivals[0][0] <= step:
            decode.submit(arrivals.pop(0)[1])
        for job in decode.grant():
            decode.ready(job)
        running = decode.join()
        if not running:
            assert arrivals, "nothing runs, nothing comes, and not all are done"
            step = arrivals[0][0]
            continue
        limit = arrivals[0][0] - step if arrivals else 10**9
        steps = min(decode.steps_until_change(), limit) if leap else 1
        assert running <= most
        finished = decode.stepped(steps)
        step += steps
        for job in finished:
            assert job.context == total[job]
            ended.append((job.request_id, step))
    assert (blocks.free, decode.context_tokens) == (blocks.total, 0)
    return ended, decode.retractions


@given(traffic, st.integers(120, 400), st.sampled_from([1, 4]), st.integers(1, 64), st.integers(1, 8))
def test_leaps_give_what_single_steps_give(jobs: Traffic, kv: int, block: int, reserve: int, most: int) -> None:
    one, leaps = (run(jobs, kv, block, reserve, most, leap=leap) for leap in (False, True))
    assert sorted(one[0], key=lambda e: (e[1], e[0])) == sorted(leaps[0], key=lambda e: (e[1], e[0]))
    assert one[1] == leaps[1]
