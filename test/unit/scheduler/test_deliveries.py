"""The encoder's book of destinations, case by case."""

from __future__ import annotations

from sgl_epd.protocol.delivery import Deliver, Delivered, DeliveryAck, DeliveryFailed, Destination
from sgl_epd.protocol.peers import LocalPeer
from sgl_epd.scheduler.deliveries import Delivery, DeliveryBook, Progress

LEASE_S = 10.0
KEY = b"k" * 16
DELIVERED = (b"p0", Delivered("r", "i", 0))
ACK = DeliveryAck("r", "i", 0)


def message(items: str = "i", rank: int = 0, num_ranks: int = 1, lease_s: float = LEASE_S) -> Deliver:
    destinations = tuple(Destination(item_id=item, key=KEY, ranges=((0, 8),)) for item in items)
    return Deliver(
        request_id="r", rank=rank, num_ranks=num_ranks, peer=LocalPeer("p", 64), items=destinations, lease_s=lease_s
    )


def told(book: DeliveryBook, now: float = 0.0) -> Delivery:
    (delivery,) = book.deliver(b"p0", message(), now)
    book.begin(delivery, now)
    book.end(delivery, now)
    return delivery


def test_a_delivery_goes_through_its_states() -> None:
    book = DeliveryBook()
    (delivery,) = book.deliver(b"p0", message(), 1.0)
    assert book.waiting(KEY) == [delivery]
    assert book.begin(delivery, 3.0) == LEASE_S - 2.0
    assert book.waiting(KEY) == []
    assert book.step(4.0) == []
    book.end(delivery, 5.0)
    assert book.step(5.0) == [DELIVERED]
    assert book.acknowledged(b"p0", ACK)
    assert (delivery.progress, len(book), book.next_at()) == (Progress.GONE, 0, None)


def test_a_message_that_comes_twice_is_one_delivery() -> None:
    book = DeliveryBook()
    (first,) = book.deliver(b"p0", message(), 0.0)
    assert book.deliver(b"p0", message("ij", lease_s=99.0), 1.0)[0].item_id == "j"
    assert first.expires_at == LEASE_S
    assert len(book) == 2


def test_an_answer_is_repeated_until_it_is_acknowledged() -> None:
    book = DeliveryBook(repeat_s=0.1)
    told(book)
    assert book.step(0.0) == [DELIVERED]
    assert book.step(0.05) == []
    assert book.next_at() == 0.1
    assert book.step(0.1) == [DELIVERED]
    book.acknowledged(b"p0", ACK)
    assert book.step(0.2) == []


def test_an_answer_is_not_repeated_beyond_the_lease() -> None:
    book = DeliveryBook()
    told(book)
    assert book.step(LEASE_S) == []
    assert len(book) == 0


def test_a_failure_is_told_and_acknowledged_but_the_item_is_not_done() -> None:
    book = DeliveryBook()
    (delivery,) = book.deliver(b"p0", message(), 0.0)
    book.end(delivery, 0.0, "no such item", retry=True)
    failed = DeliveryFailed(request_id="r", item_id="i", rank=0, message="no such item", retry=True)
    assert book.step(0.0) == [(b"p0", failed)]
    assert not book.acknowledged(b"p0", ACK)
    assert len(book) == 0


def test_no_write_starts_when_the_lease_is_over() -> None:
    book = DeliveryBook()
    (delivery,) = book.deliver(b"p0", message(), 0.0)
    assert book.begin(delivery, LEASE_S) == 0.0
    assert book.begin(delivery, LEASE_S + 1) == 0.0
    assert delivery.progress is Progress.WAITING


def test_no_write_starts_twice() -> None:
    book = DeliveryBook()
    (delivery,) = book.deliver(b"p0", message(), 0.0)
    assert book.begin(delivery, 0.0) > 0
    assert book.begin(delivery, 0.0) == 0.0


def test_an_item_is_done_when_every_rank_has_acknowledged_it() -> None:
    book = DeliveryBook()
    for rank in (0, 1):
        (delivery,) = book.deliver(b"p%d" % rank, message(rank=rank, num_ranks=2), 0.0)
        book.begin(delivery, 0.0)
        book.end(delivery, 0.0)
    assert not book.acknowledged(b"p1", DeliveryAck("r", "i", 1))
    assert not book.acknowledged(b"p1", DeliveryAck("r", "i", 1))
    assert book.acknowledged(b"p0", ACK)
    assert not book.acknowledged(b"p0", ACK)


def test_what_one_rank_has_is_forgotten_with_its_lease() -> None:
    book = DeliveryBook()
    for start, rank in ((0.0, 0), (LEASE_S, 1)):
        book.step(start)
        (delivery,) = book.deliver(b"p%d" % rank, message(rank=rank, num_ranks=2), start)
        book.begin(delivery, start)
        book.end(delivery, start)
        assert not book.acknowledged(b"p%d" % rank, DeliveryAck("r", "i", rank))


def test_an_acknowledgement_of_what_was_not_told_is_nothing() -> None:
    book = DeliveryBook()
    book.deliver(b"p0", message(), 0.0)
    assert not book.acknowledged(b"p0", ACK)
    assert not book.acknowledged(b"p9", ACK)
    assert len(book) == 1


def test_cancel_is_answered_at_once_for_what_waits_and_at_its_end_for_what_is_being_written() -> None:
    book = DeliveryBook()
    waiting, sending = book.deliver(b"p0", message("ws"), 0.0)
    book.begin(sending, 0.0)
    book.cancel("r", 1.0)
    ((_, answer),) = book.step(1.0)
    assert isinstance(answer, DeliveryFailed)
    assert (answer.item_id, answer.retry, waiting.progress) == ("w", False, Progress.TOLD)
    book.acknowledged(b"p0", DeliveryAck("r", "w", 0))
    book.end(sending, 2.0)
    assert book.step(2.0) == [(b"p0", Delivered("r", "s", 0))]


def test_cancel_spares_other_requests() -> None:
    book = DeliveryBook()
    (delivery,) = book.deliver(b"p0", message(), 0.0)
    book.cancel("other", 0.0)
    assert delivery.progress is Progress.WAITING


def test_what_was_to_go_to_a_lost_peer_is_forgotten_and_its_write_ends_unheard() -> None:
    book = DeliveryBook()
    (lost,) = book.deliver(b"p0", message(), 0.0)
    (kept,) = book.deliver(b"p1", message(), 0.0)
    book.begin(lost, 0.0)
    book.lost(b"p0")
    book.end(lost, 1.0, "gone")
    assert book.step(1.0) == []
    assert (lost.progress, kept.progress, len(book)) == (Progress.GONE, Progress.WAITING, 1)
