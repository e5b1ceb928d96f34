"""Prefill's book of embeddings on their way: what each request still lacks, and from which encoder it comes.

One for each rank. It drives `MMBlockManager`: blocks for a whole request first, then one `Deliver` for what is neither
cached nor ordered by an earlier request, then waiting. The router's references say which encoder has an item.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Embedding, Reservation, Status, Want
from sgl_epd.protocol.delivery import Deliver, Delivered, DeliveryAck, Destination, FromEncoder, ToEncoder
from sgl_epd.protocol.encode import CancelRequest
from sgl_epd.protocol.peers import Peer
from sgl_epd.protocol.reference import Reference


class Missing(NamedTuple):
    """An item that its encoder will not deliver; `replace` names another one."""

    request_id: str
    item_id: str
    message: str
    retry: bool


class _Order(NamedTuple):
    """What was asked of whom. Item ids are unique, so an answer to a given-up order is never taken for another's."""

    encoder: str
    request_id: str
    item_id: str


@dataclasses.dataclass(slots=True)
class _Arrival:
    """One request: its reservation, and for each embedding who was asked for it."""

    reservation: Reservation
    references: dict[Want, Reference]
    asked: dict[Want, _Order] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class News:
    """What `step` wants done."""

    send: list[tuple[str, ToEncoder]] = dataclasses.field(default_factory=list)
    """(encoder, message)"""
    ready: list[str] = dataclasses.field(default_factory=list)
    """Requests all of whose embeddings are here; told once."""
    missing: list[Missing] = dataclasses.field(default_factory=list)
    expired: list[str] = dataclasses.field(default_factory=list)
    """Requests whose lease is over; they hold nothing any more."""


class ArrivalBook:
    """Plain and synchronous; call `step` after every other method and at `next_at`.

    `grace_s` covers the time of a `Deliver` on the wire and whatever a lost encoder had sent already. So it must be
    more than the transfer's stall timeout.
    """

    def __init__(
        self,
        blocks: MMBlockManager,
        peer: Peer,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        lease_s: float = 30.0,
        grace_s: float = 1.5,
    ) -> None:
        self._blocks = blocks
        self._peer = peer
        self._rank, self._num_ranks = rank, num_ranks
        self._lease_s, self._grace_s = lease_s, grace_s
        self._orders: dict[_Order, Embedding] = {}
        """Not answered yet, also for requests that are over: until then their blocks may be written to."""
        self._arrivals: dict[str, _Arrival] = {}
        self._told_ready: set[str] = set()
        self._news = News()

    @property
    def layout(self) -> BlockLayout:
        return self._blocks.layout

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def num_orders(self) -> int:
        """Deliveries that were asked for and not answered, also those that nobody needs any more."""
        return len(self._orders)

    def expect(self, request_id: str, references: Sequence[Reference], now: float) -> Reservation:
        """Queue a request for its blocks. Raises `PayloadTooLargeError` or `UnavailableError`."""
        if request_id in self._arrivals:
            raise ValueError(f"request {request_id} is expected already")
        wanted: dict[Want, Reference] = {}
        for reference in references:
            wanted.setdefault(_want(reference), reference)
        reservation = self._blocks.reserve(request_id, list(wanted), now, self._lease_s)
        self._arrivals[request_id] = _Arrival(reservation, wanted)
        return reservation

    def replace(self, request_id: str, references: Sequence[Reference], now: float) -> None:
        """The router gave these items to other encoders, under new item ids."""
        arrival = self._arrivals.get(request_id)
        if arrival is None:
            return
        for reference in references:
            if _want(reference) in arrival.references:
                arrival.references[_want(reference)] = reference
        self._order(request_id, arrival, now)

    def receive(self, encoder: str, message: FromEncoder, now: float) -> None:
        """Acknowledged in any case: an answer to what is over must not be sent for ever."""
        ack = DeliveryAck(message.request_id, message.item_id, message.rank)
        self._news.send.append((encoder, ack))
        order = _Order(encoder, message.request_id, message.item_id)
        embedding = self._orders.pop(order, None)
        if embedding is None:
            return
        self._blocks.stopped(embedding, order)
        arrival = self._current(order, embedding)
        if arrival is None:
            return
        if isinstance(message, Delivered):
            self._blocks.fill(arrival.reservation, embedding.want)
        else:
            self._news.missing.append(Missing(order.request_id, order.item_id, message.message, message.retry))

    def lost(self, encoder: str, now: float) -> None:
        """The connection has ended: what was to come from there will not, but for what is on the wire."""
        for order, embedding in [each for each in self._orders.items() if each[0].encoder == encoder]:
            del self._orders[order]
            self._blocks.lost(embedding, order, now + self._grace_s)
            if self._current(order, embedding) is not None:
                self._news.missing.append(Missing(order.request_id, order.item_id, f"{encoder} is gone", retry=True))

    def release(self, request_id: str, now: float, *, keep: bool = True) -> None:
        """The prefill is done, or the request is: its embeddings are cache, what is still to come is called off."""
        arrival = self._arrivals.pop(request_id, None)
        if arrival is not None:
            self._call_off(request_id)
            self._blocks.release(arrival.reservation, now, keep=keep)

    def step(self, now: float) -> News:
        for request_id, arrival in self._arrivals.items():
            if arrival.reservation.expires_at <= now:
                self._call_off(request_id)
        self._orders = {order: e for order, e in self._orders.items() if e.writers.get(order, now) > now}
        changes = self._blocks.step(now)
        for reservation in changes.expired:
            self._arrivals.pop(reservation.owner, None)
            self._news.expired.append(reservation.owner)
        for reservation in changes.granted:
            self._blocks.renew(reservation, now, self._lease_s)
            self._order(reservation.owner, self._arrivals[reservation.owner], now)
        for embedding in changes.promoted:
            self._take_over(embedding, now)
        self._tell_ready(now)
        news, self._news = self._news, News()
        return news

    def next_at(self) -> float | None:
        return self._blocks.next_at()

    def _order(self, request_id: str, arrival: _Arrival, now: float) -> None:
        """Ask for what this request has to have written and nobody was asked for yet: one message an encoder.

        The encoder's lease is what is left of the reservation's.
        """
        reservation, lease_s = arrival.reservation, arrival.reservation.expires_at - now
        by_encoder: dict[str, list[Destination]] = defaultdict(list)
        for embedding in reservation.to_write() if lease_s > 0 else ():
            reference = arrival.references[embedding.want]
            order = _Order(reference.encoder, request_id, reference.item_id)
            if arrival.asked.get(embedding.want) == order:
                continue
            self._blocks.order(reservation, embedding.want, order, reservation.expires_at + self._grace_s)
            self._orders[order] = embedding
            arrival.asked[embedding.want] = order
            ranges = self.layout.ranges(embedding.runs, embedding.want.rows)
            destination = Destination(item_id=reference.item_id, key=reference.key, ranges=ranges)
            by_encoder[reference.encoder].append(destination)
        for encoder, items in by_encoder.items():
            self._news.send.append((encoder, self._message(request_id, items, lease_s)))

    def _message(self, request_id: str, items: Sequence[Destination], lease_s: float) -> Deliver:
        return Deliver(
            request_id=request_id,
            rank=self._rank,
            num_ranks=self._num_ranks,
            peer=self._peer,
            items=tuple(items),
            lease_s=lease_s,
        )

    def _current(self, order: _Order, embedding: Embedding) -> _Arrival | None:
        """The request, if it still waits for exactly this order."""
        arrival = self._arrivals.get(order.request_id)
        if arrival is None or arrival.asked.get(embedding.want) != order or embedding.filled:
            return None
        return arrival

    def _take_over(self, embedding: Embedding, now: float) -> None:
        writer = embedding.writer
        if writer is not None:
            self._order(writer.owner, self._arrivals[writer.owner], now)

    def _call_off(self, request_id: str) -> None:
        """The encoders answer, and with that the blocks are safe."""
        encoders = {order.encoder for order in self._orders if order.request_id == request_id}
        self._news.send += [(encoder, CancelRequest(request_id)) for encoder in sorted(encoders)]
        self._told_ready.discard(request_id)

    def _tell_ready(self, now: float) -> None:
        """From here on nobody else is waited for, so the lease is over: the engine releases what it uses."""
        for request_id, arrival in self._arrivals.items():
            complete = arrival.reservation.status is Status.GRANTED and arrival.reservation.complete
            if complete and request_id not in self._told_ready:
                self._told_ready.add(request_id)
                self._blocks.renew(arrival.reservation, now, float("inf"))
                self._news.ready.append(request_id)


def _want(reference: Reference) -> Want:
    return Want(reference.key, reference.num_tokens)
