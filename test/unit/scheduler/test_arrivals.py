"""Prefill's book of embeddings on their way, case by case."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.protocol.delivery import Deliver, Delivered, DeliveryAck, DeliveryFailed
from sgl_epd.protocol.encode import CancelRequest
from sgl_epd.protocol.items import EmbeddingFormat, Modality
from sgl_epd.protocol.peers import LocalPeer
from sgl_epd.protocol.reference import Reference
from sgl_epd.scheduler.arrivals import ArrivalBook, Missing, News

LEASE_S, GRACE_S = 10.0, 1.0
PEER = LocalPeer("p", 64)


def books(num_blocks: int = 8, **kwargs: int) -> tuple[ArrivalBook, MMBlockManager]:
    blocks = MMBlockManager(BlockLayout(num_blocks, rows_per_block=4, row_bytes=2))
    return ArrivalBook(blocks, PEER, lease_s=LEASE_S, grace_s=GRACE_S, **kwargs), blocks


def ref(name: str, encoder: str = "e0", rows: int = 8, item: str | None = None) -> Reference:
    return Reference(
        encoder=encoder,
        item_id=item or f"{name}-item",
        key=name.encode() * 16,
        modality=Modality.IMAGE,
        grid=(1, 2, 2),
        num_tokens=rows,
        format=EmbeddingFormat(1, "float16"),
    )


def delivers(news: News) -> dict[str, list[str]]:
    return {to: [d.item_id for d in message.items] for to, message in news.send if isinstance(message, Deliver)}


def expect(book: ArrivalBook, request_id: str, references: Sequence[Reference], now: float = 0.0) -> News:
    book.expect(request_id, references, now)
    return book.step(now)


def test_each_encoder_gets_one_message_with_its_items_and_ranges() -> None:
    book, _ = books(rank=1, num_ranks=2)
    news = expect(book, "r", [ref("a", "e0", 8), ref("b", "e1", 3), ref("c", "e0", 4)])
    assert delivers(news) == {"e0": ["a-item", "c-item"], "e1": ["b-item"]}
    (to, first), _ = news.send
    assert isinstance(first, Deliver)
    assert (to, first.request_id, first.rank, first.num_ranks, first.peer) == ("e0", "r", 1, 2, PEER)
    assert [d.ranges for d in first.items] == [((0, 16),), ((24, 8),)]
    assert first.lease_s == LEASE_S


def test_a_request_is_ready_once_when_its_last_item_has_come_in_any_order() -> None:
    book, blocks = books()
    expect(book, "r", [ref("a", "e0"), ref("b", "e1")])
    book.receive("e1", Delivered("r", "b-item", 0), 1.0)
    news = book.step(1.0)
    assert news.send == [("e1", DeliveryAck("r", "b-item", 0))]
    assert news.ready == []
    book.receive("e0", Delivered("r", "a-item", 0), 2.0)
    assert book.step(2.0).ready == ["r"]
    assert book.step(2.0).ready == []
    book.release("r", 3.0)
    assert book.step(3.0) == News()
    assert (blocks.cached_blocks, book.num_orders, len(book)) == (4, 0, 0)


def test_what_is_in_use_is_not_taken_away_by_a_lease() -> None:
    book, _ = books()
    expect(book, "r", [ref("a")])
    book.receive("e0", Delivered("r", "a-item", 0), 1.0)
    book.step(1.0)
    assert book.step(1e6).expired == []
    assert book.next_at() is None


def test_a_cached_item_is_ready_without_a_message() -> None:
    book, _ = books()
    expect(book, "1", [ref("a")])
    book.receive("e0", Delivered("1", "a-item", 0), 1.0)
    book.release("1", 1.0)
    book.step(1.0)
    news = expect(book, "2", [ref("a"), ref("a", item="copy")], 2.0)
    assert (news.send, news.ready) == ([], ["2"])


def test_the_same_item_twice_is_asked_for_once() -> None:
    book, _ = books()
    assert delivers(expect(book, "r", [ref("a", item="first"), ref("a", item="second")])) == {"e0": ["first"]}


def test_an_item_under_way_is_not_asked_for_again_and_serves_both() -> None:
    book, _ = books()
    expect(book, "1", [ref("a", item="i1")])
    assert expect(book, "2", [ref("a", item="i2")]).send == []
    book.receive("e0", Delivered("1", "i1", 0), 1.0)
    assert sorted(book.step(1.0).ready) == ["1", "2"]


def test_when_the_first_request_ends_the_second_asks_its_own_encoder() -> None:
    book, _ = books()
    expect(book, "1", [ref("a", "e0", item="i1")])
    expect(book, "2", [ref("a", "e1", item="i2")])
    book.release("1", 1.0)
    news = book.step(1.0)
    assert ("e0", CancelRequest("1")) in news.send
    assert delivers(news) == {"e1": ["i2"]}
    book.receive("e0", Delivered("1", "i1", 0), 2.0)
    assert book.step(2.0).ready == []
    book.receive("e1", Delivered("2", "i2", 0), 3.0)
    assert book.step(3.0).ready == ["2"]


def test_a_failed_item_is_missing_until_the_router_names_another_encoder() -> None:
    book, _ = books()
    expect(book, "r", [ref("a", "e0", item="i1")])
    failed = DeliveryFailed(request_id="r", item_id="i1", rank=0, message="out of memory", retry=True)
    book.receive("e0", failed, 1.0)
    news = book.step(1.0)
    assert news.missing == [Missing("r", "i1", "out of memory", True)]
    assert news.send == [("e0", DeliveryAck("r", "i1", 0))]
    book.replace("r", [ref("a", "e1", item="i2")], 4.0)
    ((to, message),) = book.step(4.0).send
    assert isinstance(message, Deliver)
    assert (to, message.items[0].item_id, message.lease_s) == ("e1", "i2", LEASE_S - 4.0)
    book.receive("e0", failed, 5.0)
    assert book.step(5.0).missing == []
    book.receive("e1", Delivered("r", "i2", 0), 5.0)
    assert book.step(5.0).ready == ["r"]


def test_a_lost_encoder_leaves_its_open_items_missing_and_no_others() -> None:
    book, _ = books()
    expect(book, "r", [ref("a", "e0"), ref("b", "e0"), ref("c", "e1")])
    book.receive("e0", Delivered("r", "b-item", 0), 1.0)
    book.lost("e0", 1.0)
    assert book.step(1.0).missing == [Missing("r", "a-item", "e0 is gone", True)]
    assert book.num_orders == 1


def test_a_replacement_for_what_is_gone_or_unknown_changes_nothing() -> None:
    book, _ = books()
    book.replace("never", [ref("a")], 0.0)
    expect(book, "r", [ref("a")])
    book.replace("r", [ref("z")], 0.0)
    book.replace("r", [ref("a")], 0.0)
    assert book.step(0.0) == News()


def test_blocks_are_free_once_the_encoder_has_answered_the_cancel() -> None:
    book, blocks = books()
    expect(book, "r", [ref("a")])
    book.release("r", 1.0)
    assert book.step(1.0).send == [("e0", CancelRequest("r"))]
    assert blocks.free_blocks == 6
    book.receive("e0", Delivered("r", "a-item", 0), 2.0)
    assert book.step(2.0).send == [("e0", DeliveryAck("r", "a-item", 0))]
    assert blocks.free_blocks == 8


def test_blocks_are_free_at_the_latest_by_lease_and_grace() -> None:
    book, blocks = books()
    expect(book, "r", [ref("a")])
    assert book.next_at() == LEASE_S
    news = book.step(LEASE_S)
    assert (news.expired, news.send) == (["r"], [("e0", CancelRequest("r"))])
    assert (len(book), blocks.free_blocks) == (0, 6)
    assert book.next_at() == LEASE_S + GRACE_S
    book.step(LEASE_S + GRACE_S)
    assert (blocks.free_blocks, book.num_orders, book.next_at()) == (8, 0, None)


def test_blocks_of_a_lost_encoder_are_free_after_the_grace() -> None:
    book, blocks = books()
    expect(book, "r", [ref("a")])
    book.lost("e0", 2.0)
    book.release("r", 2.0)
    assert book.step(2.0 + GRACE_S - 0.1).send == []
    assert blocks.free_blocks == 6
    book.step(2.0 + GRACE_S)
    assert blocks.free_blocks == 8


def test_a_request_that_waited_for_blocks_has_its_whole_lease_for_the_embeddings() -> None:
    book, _ = books(2)
    expect(book, "1", [ref("a")])
    expect(book, "2", [ref("b")], now=1.0)
    book.receive("e0", Delivered("1", "a-item", 0), 9.0)
    book.step(9.0)
    book.release("1", 9.0)
    ((_, message),) = book.step(9.0).send
    assert isinstance(message, Deliver)
    assert message.lease_s == LEASE_S
    assert book.step(18.9).expired == []
    assert book.step(19.0).expired == ["2"]


def test_a_request_that_never_gets_blocks_expires_too() -> None:
    book, _ = books(2)
    expect(book, "1", [ref("a")])
    book.receive("e0", Delivered("1", "a-item", 0), 0.0)
    expect(book, "2", [ref("b")], now=1.0)
    news = book.step(11.0)
    assert (news.expired, news.send) == (["2"], [])


def test_one_request_id_is_expected_once() -> None:
    book, _ = books()
    expect(book, "r", [ref("a")])
    with pytest.raises(ValueError, match="expected already"):
        book.expect("r", [ref("b")], 0.0)


def test_an_answer_that_nobody_waits_for_is_acknowledged() -> None:
    book, _ = books()
    book.receive("e9", Delivered("old", "i", 0), 0.0)
    assert book.step(0.0).send == [("e9", DeliveryAck("old", "i", 0))]


def test_answers_to_a_replaced_order_change_nothing_but_end_its_writes() -> None:
    book, blocks = books()
    expect(book, "r", [ref("a", "e0", item="i1")])
    book.replace("r", [ref("a", "e1", item="i2")], 1.0)
    book.replace("r", [ref("a", "e2", item="i3")], 2.0)
    assert delivers(book.step(2.0)) == {"e1": ["i2"], "e2": ["i3"]}
    book.receive("e0", DeliveryFailed(request_id="r", item_id="i1", rank=0, message="full", retry=True), 3.0)
    book.receive("e1", Delivered("r", "i2", 0), 3.0)
    news = book.step(3.0)
    assert (news.missing, news.ready, book.num_orders) == ([], [], 1)
    book.receive("e2", Delivered("r", "i3", 0), 4.0)
    assert book.step(4.0).ready == ["r"]
    book.release("r", 5.0)
    book.step(5.0)
    assert blocks.cached_blocks == 2
