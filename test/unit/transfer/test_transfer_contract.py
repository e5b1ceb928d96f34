"""What every backend promises, on all of them: bytes land where they should, and every write ends, whoever dies."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from make_transfer import STALL_S, digest
from peers import BACKENDS, Bench, bench, until

from sgl_epd.errors import ConfigError, TransferError, TransferTimeoutError
from sgl_epd.transfer.base import Region, Write
from sgl_epd.transfer.local import LocalHub, LocalTransfer
from sgl_epd.transfer.pieces import Piece

MIB = 2**20
NBYTES = 24 * MIB
LONG_S = 20.0
BOUND_S = STALL_S + 1.5
"""Everything about a peer that is gone is over by then, with room for a busy machine."""
CROSS_PROCESS = [backend for backend in BACKENDS if backend != "local"]


@pytest.fixture(params=BACKENDS)
def any_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param, NBYTES) as made:
        yield made


@pytest.fixture(scope="module", params=BACKENDS)
def lasting(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """With two targets, for tests that leave them alive."""
    with bench(request.param, NBYTES) as made:
        made.target(), made.target()
        yield made


@pytest.fixture(params=CROSS_PROCESS)
def process_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param, NBYTES) as made:
        yield made


def fill(bench: Bench, seed: int = 0) -> None:
    bench.data[:] = np.random.default_rng(seed).integers(0, 256, bench.nbytes, np.uint8)


def settled(writes: list[Write], within_s: float) -> list[BaseException | None]:
    """How each write ended. Fails the test if one is not over, and its source free, in time."""
    deadline = time.monotonic() + within_s
    outcomes = []
    for write in writes:
        outcomes.append(write.done.exception(max(deadline - time.monotonic(), 0.01)))
        write.quiet.result(max(deadline - time.monotonic(), 0.01))
    return outcomes


def test_scattered_pieces_land_exactly_where_told(lasting: Bench) -> None:
    target = lasting.targets[0]
    lasting.data[:] = 0
    lasting.transfer.write(target.descriptor, [Piece(0, 0, NBYTES)], LONG_S).done.result(LONG_S)
    fill(lasting)
    pieces = [Piece(100, 5 * MIB + 1, 3), Piece(7 * MIB, 0, 2 * MIB + 17), Piece(0, NBYTES - 4097, 4097)]
    lasting.transfer.write(target.descriptor, pieces, LONG_S).done.result(LONG_S)
    expected = np.zeros(NBYTES, np.uint8)
    for local, remote, length in pieces:
        expected[remote : remote + length] = lasting.data[local : local + length]
    assert target.digest(0, NBYTES) == digest(expected.tobytes())


def test_many_writes_at_once_keep_apart(lasting: Bench) -> None:
    targets = lasting.targets
    fill(lasting)
    size = MIB + 11
    places = [(targets[i % 2], i * size, (19 - i) * size) for i in range(20)]
    writes = [lasting.transfer.write(t.descriptor, [Piece(a, b, size)], LONG_S) for t, a, b in places]
    assert settled(writes, LONG_S) == [None] * 20
    for target, local, remote in places:
        assert target.digest(remote, size) == digest(lasting.data[local : local + size].tobytes())


def test_a_later_write_to_the_same_place_wins_once_the_first_is_done(lasting: Bench) -> None:
    target = lasting.targets[0]
    for seed in range(3):
        fill(lasting, seed)
        lasting.transfer.write(target.descriptor, [Piece(0, 8, MIB)], LONG_S).done.result(LONG_S)
        assert target.digest(8, MIB) == digest(lasting.data[:MIB].tobytes())


def test_more_pieces_than_anything_holds_at_once(lasting: Bench) -> None:
    target = lasting.targets[0]
    fill(lasting)
    pieces = [Piece(i * 2048, (2999 - i) * 2048, 2048) for i in range(3000)]
    lasting.transfer.write(target.descriptor, pieces, LONG_S).done.result(LONG_S)
    rows = lasting.data[: 3000 * 2048].reshape(3000, 2048)[::-1]
    assert target.digest(0, 3000 * 2048) == digest(rows.tobytes())


def test_nothing_to_write_is_done_at_once(lasting: Bench) -> None:
    write = lasting.transfer.write(lasting.targets[0].descriptor, [], LONG_S)
    assert write.done.done()
    assert write.quiet.done()


@pytest.mark.parametrize("piece", [Piece(0, NBYTES - 1, 2), Piece(NBYTES - 1, 0, 2), Piece(-1, 0, 5), Piece(0, 0, 0)])
def test_a_piece_outside_of_the_regions_is_refused_and_harms_nobody(lasting: Bench, piece: Piece) -> None:
    target = lasting.targets[0]
    before = target.digest(0, NBYTES)
    fill(lasting, seed=7)
    write = lasting.transfer.write(target.descriptor, [Piece(0, 0, 8), piece], LONG_S)
    with pytest.raises(TransferError, match="outside of the regions"):
        write.done.result(0)
    assert target.digest(0, NBYTES) == before


def test_a_peer_that_was_never_there_or_has_died_is_an_error(any_bench: Bench) -> None:
    target = any_bench.target()
    target.kill()
    (error,) = settled([any_bench.transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S)], BOUND_S)
    assert isinstance(error, TransferError)


def test_after_a_peer_has_died_its_successor_is_reached(any_bench: Bench) -> None:
    first = any_bench.target()
    fill(any_bench)
    any_bench.transfer.write(first.descriptor, [Piece(0, 0, MIB)], LONG_S).done.result(LONG_S)
    first.kill()
    (error,) = settled([any_bench.transfer.write(first.descriptor, [Piece(0, 0, MIB)], LONG_S)], BOUND_S)
    assert isinstance(error, TransferError)
    second = any_bench.target()
    any_bench.transfer.write(second.descriptor, [Piece(0, 0, MIB)], LONG_S).done.result(LONG_S)
    assert second.digest(0, MIB) == digest(any_bench.data[:MIB].tobytes())


def test_kill_in_mid_transfer_ends_every_write_and_spares_the_others(process_bench: Bench) -> None:
    victim, other = process_bench.process(), process_bench.process()
    fill(process_bench)
    transfer = process_bench.transfer
    for target in (victim, other):
        transfer.write(target.descriptor, [Piece(0, 0, 8)], LONG_S).done.result(LONG_S)
    doomed = [transfer.write(victim.descriptor, [Piece(0, 0, NBYTES)], LONG_S) for _ in range(16)]
    spared = [transfer.write(other.descriptor, [Piece(0, 0, 8 * MIB)], LONG_S) for _ in range(2)]
    doomed[0].done.result(LONG_S)
    victim.kill()
    # Copies into shared memory may all have been quicker than the signal; this one comes too late for sure.
    doomed.append(transfer.write(victim.descriptor, [Piece(0, 0, NBYTES)], LONG_S))
    outcomes = settled(doomed, BOUND_S)
    assert isinstance(outcomes[-1], TransferError)
    assert all(outcome is None or isinstance(outcome, TransferError) for outcome in outcomes)
    assert settled(spared, LONG_S) == [None, None]
    assert other.digest(0, 8 * MIB) == digest(process_bench.data[: 8 * MIB].tobytes())


def test_a_silent_peer_ends_by_the_deadline_and_does_not_hold_up_others(process_bench: Bench) -> None:
    silent, other = process_bench.process(), process_bench.process()
    transfer = process_bench.transfer
    silent.pause()
    started = time.monotonic()
    write = transfer.write(silent.descriptor, [Piece(0, 0, MIB)], 0.3)
    assert time.monotonic() - started < 0.1, "the caller waited for a peer"
    fill(process_bench)
    transfer.write(other.descriptor, [Piece(0, 0, MIB)], LONG_S).done.result(BOUND_S)
    (error,) = settled([write], BOUND_S)
    assert isinstance(error, TransferTimeoutError)
    assert other.digest(0, MIB) == digest(process_bench.data[:MIB].tobytes())


def test_a_peer_that_falls_silent_later_ends_too(process_bench: Bench) -> None:
    """Whoever copies into mapped memory succeeds; the others give up, and say when the source is free."""
    target = process_bench.process()
    transfer = process_bench.transfer
    transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S).done.result(LONG_S)
    target.pause()
    writes = [transfer.write(target.descriptor, [Piece(0, 0, NBYTES)], 0.2) for _ in range(3)]
    outcomes = [write.done.exception(BOUND_S) for write in writes]
    if process_bench.backend != "shm":
        assert [type(outcome) for outcome in outcomes] == [TransferTimeoutError] * 3
    settled(writes, BOUND_S)
    target.resume()
    fill(process_bench)
    transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S).done.result(LONG_S)
    assert target.digest(0, MIB) == digest(process_bench.data[:MIB].tobytes())


def test_close_ends_what_is_under_way_and_takes_no_more(process_bench: Bench) -> None:
    target = process_bench.process()
    transfer = process_bench.transfer
    writes = [transfer.write(target.descriptor, [Piece(0, 0, NBYTES)], LONG_S) for _ in range(20)]
    transfer.close()
    outcomes = settled(writes, BOUND_S)
    assert isinstance(outcomes[-1], TransferError)
    transfer.close()
    with pytest.raises(TransferError, match="closed"):
        transfer.write(target.descriptor, [Piece(0, 0, 8)], LONG_S).done.result(0)


def test_close_while_a_peer_is_silent_is_bounded(process_bench: Bench) -> None:
    target = process_bench.process()
    target.pause()
    write = process_bench.transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S)
    started = time.monotonic()
    process_bench.transfer.close()
    assert time.monotonic() - started < BOUND_S
    assert isinstance(write.done.exception(0), TransferError)


@pytest.mark.parametrize("backend", CROSS_PROCESS)
def test_nothing_is_left_behind(backend: str) -> None:
    """Threads and descriptors, after writes that succeeded, were killed, and were closed."""

    def one_life() -> None:
        with bench(backend, 8 * MIB) as made:
            target = made.process()
            made.transfer.write(target.descriptor, [Piece(0, 0, 8 * MIB)], LONG_S).done.result(LONG_S)
            target.kill()
            settled([made.transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S)], BOUND_S)

    one_life()
    gc.collect()
    threads, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        one_life()
    # The kernel and libzmq close some of them a moment later.
    until(lambda: threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= fds)


@pytest.mark.parametrize("backend", CROSS_PROCESS)
def test_an_owner_ends_cleanly(backend: str) -> None:
    with bench(backend, MIB) as made:
        target = made.process()
        made.transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S).done.result(LONG_S)
        target.end()
        assert target.process.returncode == 0


async def test_an_event_loop_can_wait_for_a_write(lasting: Bench) -> None:
    target = lasting.targets[0]
    fill(lasting)
    write = lasting.transfer.write(target.descriptor, [Piece(0, 0, MIB)], LONG_S)
    await asyncio.wait_for(asyncio.wrap_future(write.done), LONG_S)
    assert target.digest(0, MIB) == digest(lasting.data[:MIB].tobytes())


def test_a_region_is_registered_once_and_before_use(lasting: Bench) -> None:
    with pytest.raises(ConfigError, match="its region already"):
        lasting.transfer.allocate(MIB)
    with pytest.raises(ConfigError, match="its region already"):
        lasting.transfer.register(Region.over(np.zeros(MIB, np.uint8)))


def test_without_a_region_there_is_nothing_to_describe() -> None:
    transfer = LocalTransfer(LocalHub(), "x")
    with pytest.raises(ConfigError, match="has no region yet"):
        transfer.describe()
    with pytest.raises(ConfigError, match="must be writable"):
        transfer.register(Region.over(memoryview(b"fixed")))


def test_a_write_settles_once() -> None:
    write = Write(1)
    write.fail(TransferTimeoutError("late"), quiet=False)
    assert not write.quiet.done()
    write.succeed()
    assert write.quiet.done()
    with pytest.raises(TransferTimeoutError):
        write.done.result(0)
    assert not write.done.cancel()
