"""The encoder's book of destinations: what prefill workers want written where, and how far each of them is.

    waiting --begin--> sending --end--> told --ack--> gone
       |                                 ^
       |------ end with an error, cancel-'

From every state the end of the lease or of the connection leads to gone; a write under way then ends by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import StrEnum

from sgl_epd.protocol.delivery import Deliver, Delivered, DeliveryAck, DeliveryFailed, Destination, FromEncoder
from sgl_epd.protocol.peers import Peer


class Progress(StrEnum):
    WAITING = "waiting"
    """For the embedding."""
    SENDING = "sending"
    TOLD = "told"
    """The answer is out and not acknowledged."""
    GONE = "gone"


@dataclasses.dataclass(eq=False, slots=True)
class Delivery:
    """One item to one rank of a prefill worker. `sender` is the connection that its messages go back to."""

    sender: bytes
    request_id: str
    rank: int
    num_ranks: int
    peer: Peer
    destination: Destination
    expires_at: float
    progress: Progress = Progress.WAITING
    answer: FromEncoder | None = None
    tell_at: float = float("inf")

    @property
    def key(self) -> bytes:
        return self.destination.key

    @property
    def item_id(self) -> str:
        return self.destination.item_id


@dataclasses.dataclass(slots=True)
class _Partly:
    """An item that some ranks have."""

    ranks: set[int]
    expires_at: float


Id = tuple[bytes, str, str]
"""(sender, request, item). A rank has a connection of its own."""


class DeliveryBook:
    """Plain and synchronous. The caller does what `deliver`, `waiting` and `step` give it, and reports back."""

    def __init__(self, *, repeat_s: float = 0.1) -> None:
        self._repeat_s = repeat_s
        self._deliveries: dict[Id, Delivery] = {}
        self._partly: dict[tuple[str, str], _Partly] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def deliver(self, sender: bytes, message: Deliver, now: float) -> list[Delivery]:
        """The deliveries that are new with this message; one that is known already keeps its lease."""
        new = []
        for destination in message.items:
            at = (sender, message.request_id, destination.item_id)
            if at in self._deliveries:
                continue
            self._deliveries[at] = Delivery(
                sender,
                message.request_id,
                message.rank,
                message.num_ranks,
                message.peer,
                destination,
                now + message.lease_s,
            )
            new.append(self._deliveries[at])
        return new

    def waiting(self, key: bytes) -> list[Delivery]:
        """Whoever waits for this embedding, now that it is there or known never to come."""
        return [d for d in self._deliveries.values() if d.key == key and d.progress is Progress.WAITING]

    def begin(self, delivery: Delivery, now: float) -> float:
        """A write starts. Returns the seconds that it may take; 0 if it must not start any more."""
        if delivery.progress is not Progress.WAITING or delivery.expires_at <= now:
            return 0.0
        delivery.progress = Progress.SENDING
        return delivery.expires_at - now

    def end(self, delivery: Delivery, now: float, error: str | None = None, *, retry: bool = True) -> None:
        """The embedding lies in the peer's blocks, or will not from here. With an error, call it when `quiet`."""
        if delivery.progress not in (Progress.WAITING, Progress.SENDING):
            return
        where = (delivery.request_id, delivery.item_id)
        delivery.answer = (
            Delivered(*where, delivery.rank)
            if error is None
            else DeliveryFailed(request_id=where[0], item_id=where[1], rank=delivery.rank, message=error, retry=retry)
        )
        delivery.progress = Progress.TOLD
        delivery.tell_at = now

    def acknowledged(self, sender: bytes, ack: DeliveryAck) -> bool:
        """True if with this the item is with all ranks: the router is to hear of it."""
        delivery = self._deliveries.get((sender, ack.request_id, ack.item_id))
        if delivery is None or delivery.progress is not Progress.TOLD:
            return False
        self._forget([delivery])
        if isinstance(delivery.answer, DeliveryFailed):
            return False
        at = (ack.request_id, ack.item_id)
        partly = self._partly.setdefault(at, _Partly(set(), delivery.expires_at))
        partly.ranks.add(delivery.rank)
        if len(partly.ranks) < delivery.num_ranks:
            return False
        del self._partly[at]
        return True

    def cancel(self, request_id: str, now: float) -> None:
        """Nobody wants this request's items any more; prefill waits to hear that nothing more is written."""
        for delivery in self._deliveries.values():
            if delivery.request_id == request_id and delivery.progress is Progress.WAITING:
                self.end(delivery, now, "cancelled", retry=False)

    def lost(self, sender: bytes) -> None:
        """The connection has ended: nothing more is to go there, and nobody is told."""
        self._forget([d for d in self._deliveries.values() if d.sender == sender])

    def step(self, now: float) -> list[tuple[bytes, FromEncoder]]:
        """Drop what is over; the answers to send (again) now."""
        self._forget([d for d in self._deliveries.values() if d.expires_at <= now])
        self._partly = {at: partly for at, partly in self._partly.items() if partly.expires_at > now}
        due = [d for d in self._deliveries.values() if d.tell_at <= now]
        for delivery in due:
            delivery.tell_at = now + self._repeat_s
        return [(d.sender, d.answer) for d in due if d.answer is not None]

    def next_at(self) -> float | None:
        """When `step` has something to do even if nothing else happens."""
        return min((min(d.expires_at, d.tell_at) for d in self._deliveries.values()), default=None)

    def _forget(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            delivery.progress = Progress.GONE
            del self._deliveries[delivery.sender, delivery.request_id, delivery.item_id]
