"""Where a peer's memory is and how to write to it: one struct for each transfer backend.

The owner of a region hands its descriptor out (`Transfer.describe`); `Transfer.write` of the same backend understands
it. A descriptor is only good for the process that made it: one that restarts makes another.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Size = Annotated[int, msgspec.Meta(gt=0)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
Token = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]

ByteRange = tuple[Offset, Size]
"""(offset in the region, length), in bytes."""


class LocalPeer(msgspec.Struct, frozen=True, tag="local"):
    """In the same process: the name under which the region is known to a `LocalHub`."""

    name: Name
    nbytes: Size


class ShmPeer(msgspec.Struct, frozen=True, tag="shm"):
    """On the same host: the abstract socket that hands out the region's memory file."""

    name: Name
    nbytes: Size


class ZmqPeer(msgspec.Struct, frozen=True, tag="zmq"):
    """Over ZeroMQ. Chunks that carry another token were meant for another process and are dropped."""

    endpoint: Name
    token: Token
    nbytes: Size


class MooncakePeer(msgspec.Struct, frozen=True, tag="mooncake"):
    """`session` is what Mooncake calls the target's host name: `host:rpc_port`."""

    session: Name
    address: Annotated[int, msgspec.Meta(gt=0)]
    nbytes: Size


Peer = LocalPeer | ShmPeer | ZmqPeer | MooncakePeer
