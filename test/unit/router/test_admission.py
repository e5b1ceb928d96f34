"""Admission: the limit holds, the urgent go first, nobody waits for ever, and every place comes back."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import BadRequestError, RateLimitError, RequestTimeoutError, UnavailableError
from sgl_epd_router.admission import AdmissionConfig, AdmissionQueue, Ticket
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.gate import Gate
from sgl_epd_router.limits import check_pixels, parse_priority


def queue(limit: int, size: int = 100) -> AdmissionQueue:
    return AdmissionQueue(AdmissionConfig(max_concurrent=limit, queue_size=size, priority_step_s=10.0))


def test_no_limit_admits_all() -> None:
    unlimited = queue(-1)
    assert all(unlimited.enter(0, 0.0).admitted for _ in range(1000))
    assert unlimited.running == 1000


def test_beyond_the_limit_requests_wait_in_order_and_beyond_the_queue_they_get_429() -> None:
    line = queue(1, size=2)
    first, second, third = (line.enter(0, now) for now in (0.0, 1.0, 2.0))
    with pytest.raises(RateLimitError) as refused:
        line.enter(0, 3.0)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1.0)
    assert [t.admitted for t in (first, second, third)] == [True, False, False]
    line.leave(first)
    assert (second.admitted, third.admitted) == (True, False)


def test_the_urgent_go_first_but_not_before_those_who_waited_longer_than_it_is_worth() -> None:
    line = queue(1)
    running = line.enter(0, 0.0)
    old, urgent, young = line.enter(0, 1.0), line.enter(2, 20.0), line.enter(0, 2.0)
    order = []
    for _ in range(3):
        line.leave(running)
        running = next(t for t in (old, urgent, young) if t.admitted)
        order.append(running)
    assert order == [urgent, old, young]
    line = queue(1)
    running = line.enter(0, 0.0)
    old, urgent = line.enter(0, 1.0), line.enter(2, 22.0)
    line.leave(running)
    assert old.admitted and not urgent.admitted


def test_a_full_queue_gives_its_least_urgent_place_to_a_more_urgent_request() -> None:
    line = queue(1, size=2)
    line.enter(0, 0.0)
    low, mid = line.enter(-1, 0.0), line.enter(0, 0.0)
    told: list[Ticket] = []
    low.notify = lambda: told.append(low)
    high = line.enter(5, 1.0)
    assert low.refused and told == [low]
    assert mid.waiting and high.waiting
    assert line.waiting == 2


def test_the_limit_holds_over_processes() -> None:
    buffer = bytearray(CounterBoard.size(2))
    config = AdmissionConfig(max_concurrent=3)
    here, there = (AdmissionQueue(config, CounterBoard(buffer, processes=2, mine=i)) for i in range(2))
    mine = [here.enter(0, 0.0) for _ in range(2)]
    theirs = [there.enter(0, 0.0) for _ in range(2)]
    assert [t.admitted for t in theirs] == [True, False]
    here.leave(mine[0])
    assert not theirs[1].admitted
    there.pump()
    assert theirs[1].admitted


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.integers(0, 30)), max_size=200), st.integers(1, 5))
def test_places_are_never_lost_or_given_twice(events: list[tuple[str, int]], limit: int) -> None:
    line = queue(limit, size=6)
    tickets: list[Ticket] = []
    for now, (kind, value) in enumerate(events):
        if kind == "enter":
            try:
                tickets.append(line.enter(value % 3, float(now)))
            except RateLimitError:
                assert line.waiting == 6
        elif tickets:
            line.leave(tickets.pop(value % len(tickets)))
        assert line.running == sum(t.admitted for t in tickets) <= limit
        assert line.waiting == sum(t.waiting for t in tickets) <= 6
        assert line.running == limit or line.waiting == 0
    for ticket in tickets:
        line.leave(ticket)
    assert (line.running, line.waiting) == (0, 0)


def test_requests_that_give_up_waiting_do_not_pile_up_in_memory() -> None:
    line = queue(1)
    line.enter(0, 0.0)
    line.enter(100, 0.0)
    for now in range(5000):
        line.leave(line.enter(0, float(now)))
    assert len(line._heap) < 200


def gate(limit: int, **kwargs: float) -> Gate:
    return Gate(AdmissionConfig(max_concurrent=limit, **kwargs), CounterBoard())  # type: ignore[arg-type]


async def test_a_waiting_task_runs_when_a_place_is_free() -> None:
    door = gate(1)
    first = await door.enter()
    waiter = asyncio.create_task(door.enter())
    await asyncio.sleep(0.01)
    assert not waiter.done()
    door.leave(first)
    assert (await waiter).admitted


async def test_waiting_too_long_is_408_with_retry_after() -> None:
    door = gate(1, queue_timeout_s=0.02)
    await door.enter()
    with pytest.raises(RequestTimeoutError) as refused:
        await door.enter()
    assert (refused.value.status, refused.value.retry_after_s) == (408, 1.0)
    assert door.queue.waiting == 0


async def test_a_client_that_goes_while_waiting_leaves_no_trace() -> None:
    door = gate(1)
    first = await door.enter()
    waiter = asyncio.create_task(door.enter())
    await asyncio.sleep(0.01)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert door.queue.waiting == 0
    door.leave(first)
    assert door.queue.running == 0


async def test_cancelled_in_the_moment_of_admission_the_place_goes_to_the_next() -> None:
    door = gate(1)
    first = await door.enter()
    gone, next_one = asyncio.create_task(door.enter()), asyncio.create_task(door.enter())
    await asyncio.sleep(0.01)
    door.leave(first)
    gone.cancel()
    assert (await next_one).admitted
    assert door.queue.running == 1


async def test_one_pushed_out_gets_429() -> None:
    door = gate(1, queue_size=1)
    await door.enter()
    low = asyncio.create_task(door.enter(0))
    await asyncio.sleep(0.01)
    high = asyncio.create_task(door.enter(9))
    with pytest.raises(RateLimitError):
        await low
    high.cancel()


async def test_draining_refuses_new_requests_only() -> None:
    door = gate(5)
    running = await door.enter()
    door.draining = True
    with pytest.raises(UnavailableError, match="draining"):
        await door.enter()
    door.leave(running)
    assert door.queue.running == 0


async def test_places_freed_by_another_process_are_noticed() -> None:
    buffer = bytearray(CounterBoard.size(2))
    config = AdmissionConfig(max_concurrent=1)
    here, there = (Gate(config, CounterBoard(buffer, processes=2, mine=i)) for i in range(2))
    ticket = await here.enter()
    waiter = asyncio.create_task(there.enter())
    await asyncio.sleep(0.03)
    assert not waiter.done()
    here.leave(ticket)
    assert (await asyncio.wait_for(waiter, 2.0)).admitted


def test_pixels_beyond_the_limit_are_the_clients_mistake() -> None:
    check_pixels(100, 100, 10_000)
    check_pixels(10**6, 10**6, 0)
    with pytest.raises(BadRequestError) as refused:
        check_pixels(101, 100, 10_000, param="messages[0].content[1]")
    assert refused.value.code == "image_too_large"


@pytest.mark.parametrize(
    ("given_value", "priority"), [(None, 0), (b"", 0), (b"null", 0), (b"7", 7), (b"-3", -3), (b'"5"', 5)]
)
def test_priority_is_read_as_sglang_does(given_value: bytes | None, priority: int) -> None:
    assert parse_priority(given_value) == priority


def test_a_priority_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadRequestError):
        parse_priority(b"high")
