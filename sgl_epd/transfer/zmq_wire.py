"""Control frames of the zmq transfer: msgpack structs of a fixed shape."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sgl_epd.protocol.codec import Decoder
from sgl_epd.protocol.peers import Offset, Size, Token

CHUNK_BYTES = 2**20
"""Of data behind one control frame."""
MAX_FRAME_BYTES = 1024
"""Of a control frame."""
Number = Annotated[int, msgspec.Meta(ge=0)]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Writer to owner, in front of `length` bytes of data that belong at `offset`."""

    token: Token
    number: Number
    """Running number of the writer's chunks, to be found again in the receipt."""
    offset: Offset
    length: Size


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """Owner to writer: the chunk lies in place, or was refused. Either way it uses up no credit any more."""

    number: Number
    accepted: bool


def chunk_decoder() -> Decoder[Chunk]:
    return Decoder(Chunk, MAX_FRAME_BYTES)


def receipt_decoder() -> Decoder[Receipt]:
    return Decoder(Receipt, MAX_FRAME_BYTES)
