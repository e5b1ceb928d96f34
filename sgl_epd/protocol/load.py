"""What a worker says about its own load: the encoder about its queue, prefill about its wait for embeddings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sgl_epd.protocol.items import Amount, Id

Rate = Annotated[float, msgspec.Meta(ge=0)]


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Pushed on change, at most every few ms. Work is counted in patches, the unit by which items are placed."""

    worker_id: Id
    """New with each start of the worker."""
    seq: Amount
    """Grows with each report; a lower one is late."""
    seen: dict[str, int] = {}
    """Router id -> the last of its dispatch numbers that is counted in here."""
    waiting_items: Amount = 0
    waiting_patches: Amount = 0
    running_items: Amount = 0
    running_patches: Amount = 0
    waiting_reservations: Amount = 0
    """Requests that wait for blocks: on prefill, those for which no embedding is under way yet."""
    waiting_embeddings: Amount = 0
    """On prefill: items whose blocks are reserved and whose embedding has not arrived."""
    total_blocks: Amount = 0
    free_blocks: Amount = 0
    cached_blocks: Amount = 0
    """Filled and unused: free when somebody needs them."""
    patches_per_s: Rate = 0.0
    """Measured; 0 before the first batch."""
