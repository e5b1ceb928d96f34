"""Random lives of an MMBlockManager against a model of the memory itself.

The model writes the embedding's key into every block when it is filled, and lets peers that were given up go on writing
as long as they may. If a block is ever used twice, or given away too early, some filled embedding no longer reads as
its own key.
"""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Embedding, Found, Reservation, Status, Want

NUM_BLOCKS, ROWS, GRACE_S, LEASE_S = 12, 4, 0.5, 5.0
SIZES = dict(zip("abcdefg", (1, 4, 5, 9, 16, 24, 40), strict=True))
WANTS = [Want(name.encode() * 16, rows) for name, rows in SIZES.items()]


@dataclasses.dataclass
class Ghost:
    """A peer that was told to write and may do so for some time, whoever wanted it."""

    embedding: Embedding
    number: int
    until: float


def blocks_of(embedding: Embedding) -> list[int]:
    return [block for run in embedding.runs for block in range(run.start, run.start + run.length)]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.manager = MMBlockManager(BlockLayout(NUM_BLOCKS, ROWS, 8), max_waiting=1000)
        self.memory: list[bytes] = [b""] * NUM_BLOCKS
        self.waiting: list[Reservation] = []
        self.held: list[Reservation] = []
        self.sending: list[Embedding] = []
        self.ghosts: list[Ghost] = []
        self.ghosts_ever: list[Ghost] = []
        self.told: set[tuple[Reservation | None, Want]] = set()
        """Who was told, by `found` or `promoted`, to have what written."""

    def step(self) -> None:
        ending = [r for r in (*self.waiting, *self.held) if r.expires_at <= self.now]
        changes = self.manager.step(self.now)
        assert set(changes.expired) == set(ending)
        self.waiting = [r for r in self.waiting if r not in ending]
        self.held = [r for r in self.held if r not in ending]
        assert changes.granted == self.waiting[: len(changes.granted)], "not in order of arrival"
        for reservation in changes.granted:
            assert set(reservation.embeddings) == set(reservation.wants), "not granted as a whole"
            self.told |= {(reservation, want) for want, found in reservation.found.items() if found is Found.MISS}
        self.held += changes.granted
        self.waiting = self.waiting[len(changes.granted) :]
        self.told |= {(embedding.writer, embedding.want) for embedding in changes.promoted}

    def order(self, reservation: Reservation, want: Want) -> None:
        embedding = reservation.embeddings[want]
        ghost = Ghost(embedding, len(self.ghosts_ever), reservation.expires_at + GRACE_S)
        ordered = self.manager.order(reservation, want, ghost.number, ghost.until)
        assert ordered == (embedding.writer is reservation)
        if ordered:
            self.ghosts.append(ghost)
            self.ghosts_ever.append(ghost)

    @rule(wants=st.lists(st.sampled_from(WANTS), min_size=1, max_size=4))
    def reserve(self, wants: list[Want]) -> None:
        if sum(-(-want.rows // ROWS) for want in dict.fromkeys(wants)) > NUM_BLOCKS:
            return
        self.waiting.append(self.manager.reserve("r", wants, self.now, LEASE_S))
        self.step()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def tell_a_peer(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.held))
        self.order(reservation, data.draw(st.sampled_from(list(reservation.embeddings))))

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data(), says_so=st.booleans())
    def a_peer_stops_or_is_lost(self, data: st.DataObject, says_so: bool) -> None:
        ghost = data.draw(st.sampled_from(self.ghosts))
        if says_so:
            self.ghosts.remove(ghost)
            self.manager.stopped(ghost.embedding, ghost.number)
        else:
            ghost.until = min(ghost.until, self.now + GRACE_S)
            self.manager.lost(ghost.embedding, ghost.number, ghost.until)
        self.step()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.held))
        want = data.draw(st.sampled_from(list(reservation.embeddings)))
        embedding = reservation.embeddings[want]
        is_writer = embedding.writer is reservation
        assert self.manager.fill(reservation, want) == is_writer
        if is_writer:
            for block in blocks_of(embedding):
                self.memory[block] = want.key

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill_all_and_release(self, data: st.DataObject) -> None:
        """The ordinary life, in one rule so that caches fill up and queues move."""
        reservation = data.draw(st.sampled_from(self.held))
        for want, embedding in reservation.embeddings.items():
            if self.manager.fill(reservation, want):
                for block in blocks_of(embedding):
                    self.memory[block] = want.key
        self.manager.release(reservation, self.now)
        self.held.remove(reservation)
        self.step()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def tell_peers_and_give_up(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.held))
        for want in reservation.embeddings:
            self.order(reservation, want)
        self.manager.release(reservation, self.now)
        self.held.remove(reservation)
        self.step()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.held))
        want = data.draw(st.sampled_from(list(reservation.embeddings)))
        if reservation.embeddings[want].filled:
            self.sending.append(self.manager.begin_send(reservation, want))

    @precondition(lambda self: self.sending)
    @rule(data=st.data())
    def sent(self, data: st.DataObject) -> None:
        embedding = self.sending.pop(data.draw(st.integers(0, len(self.sending) - 1)))
        assert all(self.memory[block] == embedding.want.key for block in blocks_of(embedding))
        self.manager.end_send(embedding, self.now)
        self.step()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        reservation = data.draw(st.sampled_from(self.held))
        self.manager.release(reservation, self.now, keep=keep)
        self.held.remove(reservation)
        self.step()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.waiting))
        self.manager.release(reservation, self.now)
        self.waiting.remove(reservation)
        self.step()

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.5, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.step()

    @invariant()
    def ghosts_write(self) -> None:
        """The worst that given-up peers can do: write all the time."""
        self.ghosts = [ghost for ghost in self.ghosts if self.now < ghost.until]
        for ghost in self.ghosts:
            for block in blocks_of(ghost.embedding):
                self.memory[block] = ghost.embedding.want.key

    @invariant()
    def books_are_right(self) -> None:
        self.manager.check()
        for reservation in self.held:
            for want, embedding in reservation.embeddings.items():
                if embedding.filled:
                    assert all(self.memory[block] == want.key for block in blocks_of(embedding))

    @invariant()
    def somebody_has_every_embedding_written(self) -> None:
        for reservation in self.held:
            for want, embedding in reservation.embeddings.items():
                assert embedding.filled or (embedding.writer, want) in self.told

    @invariant()
    def a_hit_reads_as_itself(self) -> None:
        for want in WANTS:
            embedding = self.manager.find(want)
            if embedding is not None:
                assert all(self.memory[block] == want.key for block in blocks_of(embedding))

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        assert [r.status for r in self.waiting] == [Status.WAITING] * self.manager.num_waiting
        if not self.waiting or self.held or self.sending:
            return
        unsafe = NUM_BLOCKS - self.manager.free_blocks - self.manager.cached_blocks
        assert unsafe, "the head of the queue waits although every block could be had"

    def teardown(self) -> None:
        """However it stood: within one lease and the grace everything is free, and everybody was told."""
        while self.sending:
            self.manager.end_send(self.sending.pop(), self.now)
        deadline = self.now + LEASE_S + GRACE_S
        while (at := self.manager.next_at()) is not None:
            assert at <= deadline
            self.now = max(self.now, at)
            self.step()
        assert not self.waiting
        assert not self.held
        assert self.manager.free_blocks + self.manager.cached_blocks == NUM_BLOCKS
        assert self.manager.num_unfilled == 0


Machine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase


def test_every_waiter_gets_its_turn_within_the_leases_before_it() -> None:
    """FIFO: whoever waits behind n reservations that never let go is granted (or told) after at most n leases."""
    manager = MMBlockManager(BlockLayout(4, 1, 8))
    reservations = [manager.reserve(str(i), [Want(bytes([i]) * 16, 4)], 0.0, 1e9) for i in range(5)]
    now = 0.0
    for reservation in reservations:
        assert manager.step(now).granted == [reservation]
        assert reservation.found == {reservation.wants[0]: Found.MISS}
        manager.renew(reservation, now, LEASE_S)
        now += LEASE_S
    assert manager.step(now).expired == [reservations[-1]]
