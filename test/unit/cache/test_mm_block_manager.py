"""MMBlockManager, case by case; `test_mm_block_machine` tries what nobody thought of."""

from __future__ import annotations

import pytest

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Found, Reservation, State, Status, Want
from sgl_epd.errors import PayloadTooLargeError, UnavailableError

LEASE_S = 10.0


def want(name: str, blocks: int = 1) -> Want:
    return Want(name.encode().ljust(16, b"."), blocks * 4)


def manager(num_blocks: int = 8, **kwargs: int) -> MMBlockManager:
    return MMBlockManager(BlockLayout(num_blocks, 4, 8), **kwargs)


def granted(blocks: MMBlockManager, *wants: Want, now: float = 0.0) -> Reservation:
    reservation = blocks.reserve("r", wants, now, LEASE_S)
    assert reservation in blocks.step(now).granted
    return reservation


def filled(blocks: MMBlockManager, *wants: Want, now: float = 0.0) -> Reservation:
    reservation = granted(blocks, *wants, now=now)
    for each in wants:
        blocks.fill(reservation, each)
    return reservation


def test_an_embedding_goes_through_its_states() -> None:
    blocks = manager()
    a = want("a", 3)
    reservation = granted(blocks, a)
    embedding = reservation.embeddings[a]
    assert (embedding.state, blocks.free_blocks, blocks.num_unfilled) == (State.RESERVED, 5, 1)
    assert blocks.find(a) is None
    assert blocks.fill(reservation, a)
    assert (embedding.state, reservation.complete, blocks.num_unfilled) == (State.FILLED, True, 0)
    blocks.begin_send(reservation, a)
    assert embedding.state is State.SENDING
    blocks.release(reservation, 1.0)
    assert (embedding.state, blocks.cached_blocks) == (State.SENDING, 0)
    blocks.end_send(embedding, 2.0)
    assert (embedding.state, blocks.cached_blocks, blocks.free_blocks) == (State.CACHED, 3, 5)
    assert blocks.find(a) is embedding


def test_two_requests_cannot_each_hold_half() -> None:
    blocks = manager(8)
    first = granted(blocks, want("a", 5))
    second = blocks.reserve("2", [want("b", 3), want("c", 2)], 0.0, LEASE_S)
    third = blocks.reserve("3", [want("d", 1)], 0.0, LEASE_S)
    assert blocks.step(0.0).granted == []
    assert (second.embeddings, third.embeddings, blocks.free_blocks) == ({}, {}, 3)
    blocks.release(first, 1.0)
    assert blocks.step(1.0).granted == [second, third]


def test_a_small_one_does_not_overtake_the_head_of_the_queue() -> None:
    blocks = manager(4)
    granted(blocks, want("a", 3))
    blocks.reserve("big", [want("b", 2)], 0.0, LEASE_S)
    blocks.reserve("small", [want("c", 1)], 0.0, LEASE_S)
    assert blocks.step(0.0).granted == []
    assert blocks.num_waiting == 2


def test_cancelling_the_head_lets_the_next_one_in() -> None:
    blocks = manager(4)
    granted(blocks, want("a", 3))
    big = blocks.reserve("big", [want("b", 2)], 0.0, LEASE_S)
    small = blocks.reserve("small", [want("c", 1)], 0.0, LEASE_S)
    blocks.step(0.0)
    blocks.release(big, 0.0)
    assert blocks.step(0.0).granted == [small]
    assert big.status is Status.ENDED


def test_more_than_the_whole_region_is_refused_at_once() -> None:
    blocks = manager(4)
    with pytest.raises(PayloadTooLargeError, match="need 5 blocks of 4 tokens and the worker has 4"):
        blocks.reserve("r", [want("a", 3), want("b", 2)], 0.0, LEASE_S)
    assert blocks.num_waiting == 0


def test_the_same_item_twice_counts_once() -> None:
    blocks = manager(4)
    reservation = granted(blocks, want("a", 3), want("a", 3))
    assert len(reservation.embeddings) == 1
    assert blocks.free_blocks == 1


def test_a_full_queue_is_refused_with_retry_after() -> None:
    blocks = manager(2, max_waiting=1)
    granted(blocks, want("a", 2))
    blocks.reserve("1", [want("b")], 0.0, LEASE_S)
    with pytest.raises(UnavailableError) as error:
        blocks.reserve("2", [want("c")], 0.0, LEASE_S)
    assert error.value.retry_after_s == 1.0


@pytest.mark.parametrize("wants", [[], [Want(b"k" * 16, 0)]])
def test_a_reservation_of_nothing_is_a_mistake(wants: list[Want]) -> None:
    with pytest.raises(ValueError, match="a reservation of"):
        manager().reserve("r", wants, 0.0, LEASE_S)


def test_least_recently_used_goes_first_and_only_as_many_as_needed() -> None:
    blocks = manager(6)
    for name in "abc":
        blocks.release(filled(blocks, want(name, 2)), 0.0)
    assert blocks.find(want("a", 2)) is not None
    granted(blocks, want("d", 2))
    assert [blocks.find(want(name, 2)) is None for name in "abc"] == [False, True, False]
    assert blocks.evictions == 1


def test_a_grant_does_not_evict_its_own_hit() -> None:
    blocks = manager(4)
    blocks.release(filled(blocks, want("a", 2)), 0.0)
    blocks.release(filled(blocks, want("b", 2)), 0.0)
    reservation = granted(blocks, want("a", 2), want("c", 2))
    assert reservation.found == {want("a", 2): Found.HIT, want("c", 2): Found.MISS}
    assert blocks.find(want("b", 2)) is None


def test_a_hit_is_held_only_once_granted() -> None:
    blocks = manager(4)
    blocks.release(filled(blocks, want("a", 2)), 0.0)
    other = granted(blocks, want("b", 2))
    head = blocks.reserve("head", [want("c", 4)], 0.0, LEASE_S)
    behind = blocks.reserve("behind", [want("a", 2)], 0.0, LEASE_S)
    blocks.step(0.0)
    blocks.release(other, 1.0)
    assert blocks.step(1.0).granted == [head]
    blocks.release(head, 2.0)
    blocks.step(2.0)
    assert behind.found == {want("a", 2): Found.MISS}


def test_joined_reservation_waits_for_the_first_ones_embedding() -> None:
    blocks = manager()
    a = want("a", 2)
    first = granted(blocks, a)
    second = granted(blocks, a, want("b"))
    assert second.found[a] is Found.JOINED
    assert [e.want for e in second.to_write()] == [want("b")]
    assert not blocks.fill(second, a)
    assert blocks.fill(first, a)
    blocks.fill(second, want("b"))
    assert second.complete
    blocks.release(first, 0.0)
    assert second.embeddings[a].state is State.FILLED


def test_when_the_writer_leaves_the_next_holder_becomes_the_writer() -> None:
    blocks = manager()
    a = want("a", 2)
    first, second = granted(blocks, a), granted(blocks, a)
    blocks.release(first, 0.0)
    (embedding,) = blocks.step(0.0).promoted
    assert embedding.writer is second
    assert blocks.step(0.0).promoted == []
    assert not blocks.fill(first, a)
    assert blocks.fill(second, a)


def test_no_promotion_if_the_next_holder_is_gone_too() -> None:
    blocks = manager()
    first, second = granted(blocks, want("a")), granted(blocks, want("a"))
    blocks.release(first, 0.0)
    blocks.release(second, 0.0)
    assert blocks.step(0.0).promoted == []
    assert blocks.free_blocks == 8


def test_blocks_that_a_peer_may_write_to_stay_out_of_use_until_it_must_have_stopped() -> None:
    blocks = manager(4)
    a = want("a", 4)
    first = granted(blocks, a)
    assert blocks.order(first, a, "order", until=10.5)
    blocks.release(first, 1.0)
    second = blocks.reserve("2", [want("b", 1)], 1.0, 100.0)
    assert blocks.step(10.4).granted == []
    assert blocks.next_at() == 10.5
    assert blocks.step(10.5).granted == [second]


def test_blocks_are_free_as_soon_as_the_peer_says_that_it_stopped() -> None:
    blocks = manager(4)
    a = want("a", 4)
    first = granted(blocks, a)
    embedding = first.embeddings[a]
    blocks.order(first, a, "order", until=10.5)
    blocks.release(first, 1.0)
    second = blocks.reserve("2", [want("b", 1)], 1.0, 100.0)
    blocks.stopped(embedding, "another")
    assert blocks.step(2.0).granted == []
    blocks.stopped(embedding, "order")
    assert blocks.step(2.0).granted == [second]


def test_a_lost_peer_has_stopped_sooner_but_never_later() -> None:
    blocks = manager(4)
    a = want("a", 4)
    first = granted(blocks, a)
    embedding = first.embeddings[a]
    blocks.order(first, a, "order", until=10.5)
    blocks.lost(embedding, "order", until=3.0)
    blocks.lost(embedding, "order", until=7.0)
    blocks.lost(embedding, "unknown", until=99.0)
    assert embedding.unsafe_until == 3.0


def test_every_peer_has_to_have_stopped() -> None:
    blocks = manager(4)
    a = want("a", 4)
    first, second = granted(blocks, a), granted(blocks, a)
    embedding = first.embeddings[a]
    blocks.order(first, a, "1", until=5.0)
    blocks.release(first, 1.0)
    blocks.step(1.0)
    assert blocks.order(second, a, "2", until=8.0)
    blocks.stopped(embedding, "2")
    blocks.release(second, 2.0)
    blocks.step(4.9)
    assert blocks.free_blocks == 0
    blocks.step(5.0)
    assert blocks.free_blocks == 4


def test_an_embedding_that_a_given_up_peer_may_still_touch_is_not_cached() -> None:
    blocks = manager(4)
    a = want("a", 4)
    first, second = granted(blocks, a), granted(blocks, a)
    blocks.order(first, a, "1", until=1.5)
    blocks.release(first, 1.0)
    blocks.fill(second, a)
    blocks.release(second, 1.2)
    assert (blocks.free_blocks, blocks.cached_blocks) == (0, 0)
    blocks.step(1.5)
    assert (blocks.free_blocks, blocks.cached_blocks) == (4, 0)


def test_only_the_writer_may_order_and_only_what_is_not_there() -> None:
    blocks = manager()
    a = want("a")
    first, second = granted(blocks, a), granted(blocks, a)
    assert blocks.order(first, a, "1", until=1.0)
    assert not blocks.order(second, a, "2", until=1.0)
    assert not blocks.order(first, want("other"), "3", until=1.0)
    blocks.fill(first, a)
    assert not blocks.order(first, a, "4", until=1.0)


def test_an_owner_that_is_sure_to_release_needs_no_lease() -> None:
    blocks = manager(2)
    first = granted(blocks, want("a", 2))
    blocks.renew(first, 0.0, float("inf"))
    assert blocks.next_at() is None
    assert blocks.step(1e9).expired == []


def test_a_lease_ends_waiting_and_granted_reservations() -> None:
    blocks = manager(2)
    first = granted(blocks, want("a", 2))
    second = blocks.reserve("2", [want("b", 2)], 1.0, LEASE_S)
    third = blocks.reserve("3", [want("c", 2)], 2.0, LEASE_S)
    blocks.renew(second, 1.0, LEASE_S + 20)
    assert blocks.next_at() == 10.0
    changes = blocks.step(10.0)
    assert (changes.expired, changes.granted) == ([first], [second])
    assert blocks.step(12.0).expired == [third]
    assert not blocks.fill(first, want("a", 2))


def test_a_source_under_way_outlives_its_lease() -> None:
    blocks = manager(2)
    first = filled(blocks, want("a", 2))
    embedding = blocks.begin_send(first, want("a", 2))
    waiting = blocks.reserve("2", [want("b", 2)], 9.0, LEASE_S)
    assert blocks.step(10.0).granted == []
    blocks.end_send(embedding, 11.0)
    assert blocks.step(11.0).granted == [waiting]


def test_release_without_keeping_frees_what_nobody_else_holds() -> None:
    blocks = manager()
    a = want("a", 2)
    first, second = filled(blocks, a), granted(blocks, a)
    blocks.release(first, 0.0, keep=False)
    assert second.complete
    blocks.release(second, 0.0, keep=False)
    assert (blocks.free_blocks, blocks.cached_blocks) == (8, 0)


def test_releasing_twice_changes_nothing() -> None:
    blocks = manager()
    first = filled(blocks, want("a", 2))
    blocks.release(first, 0.0)
    blocks.release(first, 0.0)
    blocks.check()
    assert (blocks.free_blocks, blocks.cached_blocks) == (6, 2)


def test_sending_what_is_not_there_or_not_under_way_is_a_mistake() -> None:
    blocks = manager()
    first = granted(blocks, want("a"))
    with pytest.raises(ValueError, match="not filled"):
        blocks.begin_send(first, want("a"))
    with pytest.raises(ValueError, match="no send"):
        blocks.end_send(first.embeddings[want("a")], 0.0)
