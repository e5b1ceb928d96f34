"""Router and encoder: what is to be encoded, what is known of it, how it ended."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sgl_epd.protocol.items import Amount, Id, ItemMeta, MMItem, Seconds


class EncodeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="encode"):
    """The items of one request that this encoder shall encode. Answered by one `ItemAnswer` stream."""

    request_id: Id
    router_id: Id
    dispatch: Amount
    """The router's running number of what it sent here; the load report tells the last one seen."""
    items: Annotated[tuple[MMItem, ...], msgspec.Meta(min_length=1, max_length=4096)]
    timeout_s: Seconds
    """What is not delivered this long after the request arrived is dropped."""


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for this request any more. From router or prefill; the end of the answer stream says the same."""

    request_id: Id


class ItemDone(msgspec.Struct, frozen=True, tag="done"):
    """The embedding is with every rank that asked for it. The last message about an item."""

    item_id: Id


class ItemFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The last message about an item. `status` is what the client gets if nothing else can be tried."""

    item_id: Id
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    message: str
    retry: bool
    """Another encoder may do better: false for input that nobody can decode."""
    retry_after_s: float | None = None


ItemAnswer = ItemMeta | ItemDone | ItemFailed
