"""Identities that the router gives to an attempt: request id and bootstrap room.

`rid` has a fixed length because SGLang's `/abort_request` matches by prefix: an id that is a prefix of another would
abort both. A room names one KV transfer between a prefill and a decode worker and must never be shared.
"""

from __future__ import annotations

import os

import xxhash

RID_LENGTH = 32
_ROOM_SPACE = 2**63 - 2**20
"""Rooms are signed 64-bit numbers on the wire; SGLang counts upwards from the given one for the items of a batch."""


def new_rid(mark: str = "") -> str:
    """`mark` takes the place of the last characters."""
    return os.urandom(RID_LENGTH // 2).hex()[: RID_LENGTH - len(mark)] + mark


def worker_mark(worker_id: str) -> str:
    """Eight characters by which any router process or replica finds the worker again."""
    return f"{xxhash.xxh32_intdigest(worker_id.encode()):08x}"


def new_room() -> int:
    """First room of a request. Random in all bits: data-parallel workers pick a rank by `room % dp_size`."""
    return int.from_bytes(os.urandom(8), "big") % _ROOM_SPACE
