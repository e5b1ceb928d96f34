"""The protocol as a whole: one prefill, three encoders, and a network, a router and a memory that are models.

Encoders die and come back, requests are cancelled, messages and writes take any time, writes of the dead may still land
within the grace. Whatever happens: a request that is ready reads each item's own embedding, nobody else's is touched,
and in the end nothing is held.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.protocol.delivery import Deliver, DeliveryAck
from sgl_epd.protocol.encode import CancelRequest
from sgl_epd.protocol.items import EmbeddingFormat, Modality
from sgl_epd.protocol.peers import LocalPeer
from sgl_epd.protocol.reference import Reference
from sgl_epd.scheduler.arrivals import ArrivalBook
from sgl_epd.scheduler.deliveries import Delivery, DeliveryBook

NUM_BLOCKS, GRACE_S, LEASE_S, RANK = 8, 0.5, 3.0, b"prefill"
ROWS = {name.encode() * 16: rows for name, rows in (("a", 1), ("b", 2), ("c", 3), ("d", 5))}
ENCODERS = ("e0", "e1", "e2")


@dataclasses.dataclass(eq=False)
class WriteUnderWay:
    encoder: str
    delivery: Delivery
    until: float
    """The latest moment at which it lands: its lease, or the grace after its encoder's death."""
    dead: bool = False


class Encoder:
    def __init__(self) -> None:
        self.book = DeliveryBook()
        self.encoded: set[bytes] = set()
        self.inbox: deque[Any] = deque()
        self.outbox: deque[Any] = deque()


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        layout = BlockLayout(NUM_BLOCKS, rows_per_block=1, row_bytes=1)
        self.blocks = MMBlockManager(layout)
        self.book = ArrivalBook(self.blocks, LocalPeer("p", layout.nbytes), lease_s=LEASE_S, grace_s=GRACE_S)
        self.memory: list[bytes] = [b""] * NUM_BLOCKS
        self.encoders = {name: Encoder() for name in ENCODERS}
        self.writes: list[WriteUnderWay] = []
        self.requests = 0
        self.attempts = 0
        self.open: set[str] = set()
        self.ready: dict[str, dict[bytes, list[int]]] = {}

    def reference(self, key: bytes, encoder: str) -> Reference:
        self.attempts += 1
        return Reference(
            encoder=encoder,
            item_id=f"item{self.attempts}",
            key=key,
            modality=Modality.IMAGE,
            grid=(1, 2, 2),
            num_tokens=ROWS[key],
            format=EmbeddingFormat(1, "float16"),
        )

    def step(self) -> None:
        news = self.book.step(self.now)
        for encoder, message in news.send:
            self.encoders[encoder].inbox.append(message)
        for request_id in news.expired:
            assert request_id not in self.ready, "taken away while in use"
            self.open.discard(request_id)
        for request_id in news.ready:
            arrival = self.book._arrivals[request_id]
            self.ready[request_id] = {
                want.key: [block for run in e.runs for block in range(run.start, run.start + run.length)]
                for want, e in arrival.reservation.embeddings.items()
            }
        for missing in news.missing:
            self.place_again(missing.request_id, missing.item_id)

    def place_again(self, request_id: str, item_id: str) -> None:
        """The router's part: another encoder, under a new item id."""
        arrival = self.book._arrivals.get(request_id)
        for reference in list(arrival.references.values()) if arrival else []:
            if reference.item_id == item_id:
                other = ENCODERS[(ENCODERS.index(reference.encoder) + 1) % len(ENCODERS)]
                self.book.replace(request_id, [self.reference(reference.key, other)], self.now)
                self.step()

    @rule(keys=st.lists(st.sampled_from(list(ROWS)), min_size=1, max_size=3), encoder=st.sampled_from(ENCODERS))
    def request(self, keys: list[bytes], encoder: str) -> None:
        if sum(ROWS[key] for key in set(keys)) > NUM_BLOCKS:
            return
        self.requests += 1
        at = ENCODERS.index(encoder)
        references = [self.reference(key, ENCODERS[(at + i) % len(ENCODERS)]) for i, key in enumerate(keys)]
        self.book.expect(str(self.requests), references, self.now)
        self.open.add(str(self.requests))
        self.step()

    @rule(name=st.sampled_from(ENCODERS))
    def encoder_reads(self, name: str) -> None:
        encoder = self.encoders[name]
        if not encoder.inbox:
            return
        message = encoder.inbox.popleft()
        if isinstance(message, Deliver):
            for delivery in encoder.book.deliver(RANK, message, self.now):
                assert delivery.destination.nbytes == ROWS[delivery.key]
        elif isinstance(message, DeliveryAck):
            encoder.book.acknowledged(RANK, message)
        else:
            assert isinstance(message, CancelRequest)
            encoder.book.cancel(message.request_id, self.now)

    @rule(name=st.sampled_from(ENCODERS), key=st.sampled_from(list(ROWS)), fails=st.booleans())
    def encoder_encodes(self, name: str, key: bytes, fails: bool) -> None:
        encoder = self.encoders[name]
        for delivery in encoder.book.waiting(key):
            if fails:
                encoder.book.end(delivery, self.now, "out of memory")
            elif encoder.book.begin(delivery, self.now):
                self.writes.append(WriteUnderWay(name, delivery, delivery.expires_at))
        self.encoder_tells(name)

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def a_write_lands(self, data: st.DataObject) -> None:
        write = self.writes.pop(data.draw(st.integers(0, len(self.writes) - 1)))
        self.finish(write)

    def finish(self, write: WriteUnderWay) -> None:
        in_time = self.now < write.until
        if in_time:
            self.apply(write)
        if not write.dead:
            self.encoders[write.encoder].book.end(write.delivery, self.now, None if in_time else "too late")
            self.encoder_tells(write.encoder)

    def apply(self, write: WriteUnderWay) -> None:
        for offset, length in write.delivery.destination.ranges:
            self.memory[offset : offset + length] = [write.delivery.key] * length

    def encoder_tells(self, name: str) -> None:
        encoder = self.encoders[name]
        encoder.outbox += [message for _, message in encoder.book.step(self.now)]

    @rule(name=st.sampled_from(ENCODERS))
    def prefill_reads(self, name: str) -> None:
        outbox = self.encoders[name].outbox
        if outbox:
            self.book.receive(name, outbox.popleft(), self.now)
            self.step()

    @rule(name=st.sampled_from(ENCODERS))
    def encoder_dies(self, name: str) -> None:
        self.encoders[name] = Encoder()
        for write in self.writes:
            if write.encoder == name and not write.dead:
                write.dead, write.until = True, min(write.until, self.now + GRACE_S)
        self.book.lost(name, self.now)
        self.step()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish_or_cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        self.open.remove(request_id)
        self.ready.pop(request_id, None)
        self.book.release(request_id, self.now)
        self.step()

    @rule(seconds=st.sampled_from([0.05, 0.3, 0.6, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name in ENCODERS:
            self.encoder_tells(name)
        self.step()

    @rule(name=st.sampled_from(ENCODERS), key=st.sampled_from(list(ROWS)), dies=st.booleans())
    def a_request_ends_in_mid_write(self, name: str, key: bytes, dies: bool) -> None:
        self.request([key], name)
        while self.encoders[name].inbox:
            self.encoder_reads(name)
        self.encoder_encodes(name, key, fails=False)
        self.open.discard(str(self.requests))
        self.ready.pop(str(self.requests), None)
        self.book.release(str(self.requests), self.now)
        self.step()
        if dies:
            self.encoder_dies(name)

    @rule(keys=st.lists(st.sampled_from(list(ROWS)), min_size=1, max_size=3), encoder=st.sampled_from(ENCODERS))
    def a_request_goes_well(self, keys: list[bytes], encoder: str) -> None:
        """Everybody does what is to be done, except that writes of before stay as slow as they were."""
        slow = list(self.writes)
        self.request(keys, encoder)
        for name in ENCODERS * 3:
            while self.encoders[name].inbox:
                self.encoder_reads(name)
            for key in ROWS:
                self.encoder_encodes(name, key, fails=False)
            for write in [w for w in self.writes if w not in slow]:
                self.writes.remove(write)
                self.finish(write)
            while self.encoders[name].outbox:
                self.prefill_reads(name)
        if self.open == {str(self.requests)} and not self.blocks.num_waiting:
            assert self.open == set(self.ready), "everybody did their part, and it is not ready"

    @invariant()
    def writes_write(self) -> None:
        """The worst that a write under way can do: touch its destination at any moment until it ends."""
        for write in self.writes:
            if self.now < write.until:
                self.apply(write)

    @invariant()
    def what_is_ready_reads_as_itself(self) -> None:
        self.blocks.check()
        assert len(self.book) == len(self.open)
        for embeddings in self.ready.values():
            for key, places in embeddings.items():
                assert [self.memory[place] for place in places] == [key] * ROWS[key]

    def teardown(self) -> None:
        """All clients leave. Nothing is held once the living have answered, and the dead had their grace.

        If the living do not answer either, nothing is held once the leases are over.
        """
        for request_id in sorted(self.open):
            self.book.release(request_id, self.now)
        self.step()
        if self.requests % 2:
            self.answer_all()
            self.now += GRACE_S
        else:
            self.now += LEASE_S + GRACE_S
        self.step()
        assert (len(self.book), self.book.num_orders, self.blocks.num_waiting) == (0, 0, 0)
        assert self.blocks.free_blocks + self.blocks.cached_blocks == NUM_BLOCKS
        for encoder in self.encoders.values():
            encoder.book.step(self.now + LEASE_S)
            assert (len(encoder.book), encoder.book.next_at()) == (0, None)

    def answer_all(self) -> None:
        for name in ENCODERS * 3:
            while self.encoders[name].inbox:
                self.encoder_reads(name)
            for write in [w for w in self.writes if w.encoder == name and not w.dead]:
                self.writes.remove(write)
                self.finish(write)
            self.encoder_tells(name)
            while self.encoders[name].outbox:
                self.prefill_reads(name)
        assert all(len(encoder.book) == 0 for encoder in self.encoders.values())


Machine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestNativePath = Machine.TestCase
