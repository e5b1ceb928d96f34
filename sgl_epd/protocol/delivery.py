"""Prefill and encoder: where an embedding is to be written, and that it was.

A destination is leased. The encoder starts no write after the lease's end, and prefill frees the blocks no sooner than
the lease's end and a grace for what is still on the wire, unless the encoder has answered: either answer says that
nothing will be written any more.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from sgl_epd.protocol.encode import CancelRequest
from sgl_epd.protocol.items import Amount, Count, Id, Key, Seconds
from sgl_epd.protocol.peers import ByteRange, Peer


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks reserved for one item: byte ranges of the peer's region, in the order of the embedding's rows."""

    item_id: Id
    key: Key
    ranges: Annotated[tuple[ByteRange, ...], msgspec.Meta(min_length=1)]

    @property
    def nbytes(self) -> int:
        return sum(length for _, length in self.ranges)


class Deliver(msgspec.Struct, frozen=True, kw_only=True, tag="deliver"):
    """Prefill to encoder: one rank's blocks for items of a request. May come before the embeddings exist."""

    request_id: Id
    rank: Amount
    num_ranks: Count
    """An item is done when so many ranks have it."""
    peer: Peer
    items: Annotated[tuple[Destination, ...], msgspec.Meta(min_length=1)]
    lease_s: Seconds
    """Counted by the encoder from the message's arrival: no write starts later, and one under way is given up."""


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """Encoder to prefill: the bytes lie in the blocks. Sent again until acknowledged or until the lease ends."""

    request_id: Id
    item_id: Id
    rank: Amount


class DeliveryFailed(msgspec.Struct, frozen=True, kw_only=True, tag="delivery_failed"):
    """Encoder to prefill: this item will not come from here. Sent when its last write has stopped, and repeated."""

    request_id: Id
    item_id: Id
    rank: Amount
    message: str
    retry: bool


class DeliveryAck(msgspec.Struct, frozen=True, tag="ack"):
    """Prefill to encoder: `Delivered` or `DeliveryFailed` was received; the encoder may forget the delivery."""

    request_id: Id
    item_id: Id
    rank: Amount


ToEncoder = Deliver | DeliveryAck | CancelRequest
FromEncoder = Delivered | DeliveryFailed
