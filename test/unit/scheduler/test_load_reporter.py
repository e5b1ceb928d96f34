"""Load goes out on change, not too often, and as a heartbeat."""

from __future__ import annotations

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Want
from sgl_epd.protocol.items import Modality
from sgl_epd.scheduler.encode import EncodeScheduler, EncodeSchedulerConfig, Work
from sgl_epd.scheduler.load import LoadReporter


def parts() -> tuple[LoadReporter, MMBlockManager, EncodeScheduler]:
    return (
        LoadReporter("e0", min_interval_s=0.005, heartbeat_s=1.0),
        MMBlockManager(BlockLayout(8, 4, 8)),
        EncodeScheduler(EncodeSchedulerConfig(), max_batch_tokens=32),
    )


def test_first_report_then_silence_until_the_heartbeat() -> None:
    reporter, blocks, queue = parts()
    first = reporter.due(10.0, blocks, queue)
    assert first is not None
    assert (first.seq, first.total_blocks, first.free_blocks) == (1, 8, 8)
    assert reporter.due(10.5, blocks, queue) is None
    assert reporter.next_at == 11.0
    again = reporter.due(11.0, blocks, queue)
    assert again is not None
    assert again.seq == 2


def test_a_change_is_told_soon_but_not_twice_within_the_interval() -> None:
    reporter, blocks, queue = parts()
    reporter.due(0.0, blocks, queue)
    queue.submit("r", [Work("i", b"a", Modality.IMAGE, 70)], now=0.001)
    assert reporter.due(0.001, blocks, queue) is None
    assert reporter.next_at == 0.005
    report = reporter.due(0.005, blocks, queue)
    assert report is not None
    assert (report.waiting_items, report.waiting_patches, report.running_items) == (1, 70, 0)


def test_counts_follow_the_work_and_the_blocks() -> None:
    reporter, blocks, queue = parts()
    queue.submit("r", [Work("i", b"a", Modality.IMAGE, 70), Work("j", b"b", Modality.IMAGE, 5)], now=0.0)
    job = queue.next_to_prepare()
    assert job is not None
    queue.prepared(job, 80, 20)
    queue.ran(queue.next_batch(), seconds=0.5)
    blocks.reserve("r", [Want(b"a", 20)], 0.0, 1.0)
    blocks.reserve("s", [Want(b"b", 32)], 0.0, 1.0)
    blocks.step(0.0)
    report = reporter.due(0.0, blocks, queue)
    assert report is not None
    assert (report.running_items, report.running_patches, report.waiting_items, report.waiting_patches) == (1, 80, 1, 5)
    assert (report.waiting_reservations, report.waiting_embeddings, report.free_blocks) == (1, 1, 3)
    assert report.patches_per_s == 160.0


def test_a_report_tells_the_last_dispatch_of_each_router() -> None:
    reporter, blocks, _ = parts()
    reporter.received("r1", 5)
    reporter.received("r2", 3)
    reporter.received("r1", 4)
    report = reporter.due(0.0, blocks)
    assert report is not None
    assert report.seen == {"r1": 5, "r2": 3}
