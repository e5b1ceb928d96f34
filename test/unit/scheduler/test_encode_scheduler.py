"""EncodeScheduler: admission, order, batches, joined items, cancel."""

from __future__ import annotations

import dataclasses

import pytest

from sgl_epd.cache.in_flight import Waiter
from sgl_epd.config import parse
from sgl_epd.errors import ConfigError, UnavailableError
from sgl_epd.protocol.items import Modality
from sgl_epd.scheduler.encode import EncodeScheduler, EncodeSchedulerConfig, Work
from sgl_epd.scheduler.order import Job, Stage
from sgl_epd.scheduler.rate import RateMeter

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO
BASE = EncodeSchedulerConfig(max_encode_batch_items=4, max_encode_batch_patches=100)


def scheduler(max_batch_tokens: int = 10_000, **flags: object) -> EncodeScheduler:
    return EncodeScheduler(dataclasses.replace(BASE, **flags), max_batch_tokens=max_batch_tokens)  # type: ignore[arg-type]


def work(name: str, patches: int = 10, modality: Modality = IMAGE) -> Work:
    return Work(f"{name}:item", name.encode(), modality, patches)


def prepare_all(queue: EncodeScheduler) -> list[bytes]:
    keys = []
    while (job := queue.next_to_prepare()) is not None:
        assert queue.prepared(job, job.patches, job.patches // 4)
        keys.append(job.key)
    return keys


def batch_keys(queue: EncodeScheduler) -> list[bytes]:
    return [job.key for job in queue.next_batch()]


def test_an_item_goes_through_its_stages_and_ends_with_its_waiter() -> None:
    queue = scheduler()
    queue.submit("r", [work("a")], now=0.0)
    assert queue.next_batch() == []
    job = queue.next_to_prepare()
    assert job is not None
    assert job.stage is Stage.PREPARING
    assert queue.next_batch() == []
    assert queue.prepared(job, 12, 3)
    assert queue.next_batch() == [job]
    assert (queue.waiting, queue.running, job.patches, job.num_tokens) == ([], [job], 12, 3)
    assert queue.next_batch() == []
    assert queue.finish(job) == (Waiter("r", "a:item"),)
    assert queue.finish(job) == ()
    assert (queue.waiting, queue.running) == ([], [])


def test_batches_cross_requests_up_to_the_item_limit() -> None:
    queue = scheduler()
    for index in range(6):
        queue.submit(str(index), [work(str(index))], now=index)
    prepare_all(queue)
    assert batch_keys(queue) == [b"0", b"1", b"2", b"3"]
    assert batch_keys(queue) == [b"4", b"5"]


def test_batches_stop_at_the_patch_budget_and_do_not_skip_the_next_one() -> None:
    queue = scheduler()
    for name, patches in (("a", 60), ("b", 50), ("c", 40)):
        queue.submit(name, [work(name, patches)], now=0.0)
    prepare_all(queue)
    assert batch_keys(queue) == [b"a"]
    assert batch_keys(queue) == [b"b", b"c"]


def test_an_item_over_the_budget_runs_alone() -> None:
    queue = scheduler()
    queue.submit("r", [work("small", 1), work("huge", 1000), work("other", 1)], now=0.0)
    prepare_all(queue)
    assert [batch_keys(queue) for _ in range(4)] == [[b"small"], [b"huge"], [b"other"], []]


def test_batches_stop_at_the_rows_that_can_be_reserved() -> None:
    queue = scheduler(max_batch_tokens=20)
    queue.submit("r", [work("a", 40), work("b", 40), work("c", 4)], now=0.0)
    prepare_all(queue)
    assert batch_keys(queue) == [b"a", b"b"]
    assert batch_keys(queue) == [b"c"]


def test_a_batch_has_one_modality_and_the_others_keep_their_place() -> None:
    queue = scheduler()
    queue.submit("r", [work("i1"), work("v1", modality=VIDEO), work("i2"), work("v2", modality=VIDEO)], now=0.0)
    prepare_all(queue)
    assert batch_keys(queue) == [b"i1", b"i2"]
    assert batch_keys(queue) == [b"v1", b"v2"]


def test_an_unbatched_modality_runs_one_by_one() -> None:
    queue = EncodeScheduler(BASE, max_batch_tokens=100, unbatched=frozenset({VIDEO}))
    queue.submit("r", [work("v1", modality=VIDEO), work("v2", modality=VIDEO)], now=0.0)
    prepare_all(queue)
    assert [batch_keys(queue), batch_keys(queue)] == [[b"v1"], [b"v2"]]


def test_preprocessing_stays_only_so_far_ahead() -> None:
    queue = scheduler(max_encode_ready_items=2)
    queue.submit("r", [work(name) for name in "abcd"], now=0.0)
    assert prepare_all(queue) == [b"a", b"b"]
    assert batch_keys(queue) == [b"a", b"b"]
    assert prepare_all(queue) == [b"c", b"d"]


def test_identical_items_are_encoded_once_for_all() -> None:
    queue = scheduler()
    queue.submit("1", [work("a"), Work("copy", b"a", IMAGE, 10)], now=0.0)
    queue.submit("2", [work("a")], now=1.0)
    assert len(queue.waiting) == 1
    prepare_all(queue)
    (job,) = queue.next_batch()
    queue.submit("3", [work("a")], now=2.0)
    assert queue.waiting == []
    assert queue.joined_items == 3
    expected = (Waiter("1", "a:item"), Waiter("1", "copy"), Waiter("2", "a:item"), Waiter("3", "a:item"))
    assert queue.waiters(job) == expected
    assert queue.finish(job) == expected


def test_a_joining_request_with_an_earlier_deadline_moves_the_job_up() -> None:
    queue = scheduler(encode_order="slack")
    queue.submit("1", [work("a")], now=0.0, deadline_at=50.0)
    queue.submit("2", [work("b")], now=0.0, deadline_at=20.0)
    queue.submit("3", [work("a")], now=1.0, deadline_at=10.0)
    assert prepare_all(queue) == [b"a", b"b"]


def test_cancel_drops_what_nobody_else_waits_for() -> None:
    queue = scheduler()
    queue.submit("1", [work("a"), work("b")], now=0.0)
    queue.submit("2", [work("b")], now=0.0)
    assert [job.key for job in queue.cancel("1")] == [b"a"]
    assert queue.cancel("1") == ()
    prepare_all(queue)
    (job,) = queue.next_batch()
    assert queue.finish(job) == (Waiter("2", "b:item"),)


def test_pixels_of_a_cancelled_item_are_thrown_away() -> None:
    queue = scheduler()
    queue.submit("1", [work("a")], now=0.0)
    job = queue.next_to_prepare()
    assert job is not None
    queue.cancel("1")
    assert not queue.prepared(job, 10, 2)
    assert queue.finish(job) == ()
    assert (queue.waiting, queue.next_batch()) == ([], [])


def test_a_running_item_without_takers_finds_new_ones() -> None:
    queue = scheduler()
    queue.submit("1", [work("a")], now=0.0)
    prepare_all(queue)
    (job,) = queue.next_batch()
    assert queue.cancel("1") == ()
    assert queue.running == [job]
    queue.submit("2", [work("a")], now=1.0)
    assert queue.waiting == []
    assert queue.finish(job) == (Waiter("2", "a:item"),)


def test_a_running_item_that_nobody_wants_ends_quietly() -> None:
    queue = scheduler()
    queue.submit("1", [work("a")], now=0.0)
    prepare_all(queue)
    (job,) = queue.next_batch()
    queue.cancel("1")
    assert queue.finish(job) == ()
    assert queue.running == []


def test_a_full_queue_refuses_whole_requests_and_says_when_to_come_back() -> None:
    queue = scheduler(max_encode_waiting_items=3)
    queue.submit("1", [work("a", 400), work("b", 600)], now=0.0)
    with pytest.raises(UnavailableError) as error:
        queue.submit("2", [work("c"), work("d")], now=0.0)
    assert (error.value.retry_after_s, error.value.status) == (1.0, 503)
    assert {job.key for job in queue.waiting} == {b"a", b"b"}
    queue.ran([Job(b"", IMAGE, 500, 0.0, 0, 0.0)], seconds=2.0)
    with pytest.raises(UnavailableError) as error:
        queue.submit("2", [work("c"), work("d")], now=0.0)
    assert error.value.retry_after_s == pytest.approx(1000 / 250)


def test_joined_items_are_taken_however_full_the_queue_is() -> None:
    queue = scheduler(max_encode_waiting_items=1)
    queue.submit("1", [work("a"), work("b")], now=0.0)
    queue.submit("2", [work("a")], now=0.0)
    assert len(queue.waiting) == 2


def test_patches_bound_the_queue_too_but_an_empty_one_takes_anything() -> None:
    queue = scheduler(max_encode_waiting_patches=100)
    queue.submit("1", [work("a", 5000)], now=0.0)
    with pytest.raises(UnavailableError, match="1 items of 5000 patches"):
        queue.submit("2", [work("b", 1)], now=0.0)


def test_rate_is_a_decayed_ratio() -> None:
    meter = RateMeter(half_life_s=1.0)
    assert meter.rate == 0.0
    meter.observe(100, 1.0)
    assert meter.rate == 100.0
    meter.observe(0, 0.0)
    assert meter.rate == 100.0
    meter.observe(300, 1.0)
    assert meter.rate == pytest.approx((100 * 0.5 + 300) / 1.5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--encode-order", "random"], "not one of fcfs, shortest, slack"),
        (["--max-encode-batch-items", "0"], "--max-encode-batch-items must be above 0"),
        (["--encode-aging", "-1"], "--encode-aging must be above 0"),
    ],
)
def test_wrong_flags_are_config_errors(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(EncodeSchedulerConfig, argv, prog="x", description="", environ={})


def test_flags_reach_the_config() -> None:
    config = parse(EncodeSchedulerConfig, ["--encode-order", "slack"], prog="x", description="", environ={})
    assert config == EncodeSchedulerConfig(encode_order="slack")
