"""Bytes to messages and back, for sockets that keep message bounds (ZeroMQ) and for streams (HTTP bodies).

What is no message of the expected kind raises `PeerProtocolError`; nothing else comes out of bytes from outside.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from sgl_epd.errors import PeerProtocolError
from sgl_epd.protocol.delivery import FromEncoder, ToEncoder
from sgl_epd.protocol.encode import EncodeRequest, ItemAnswer
from sgl_epd.protocol.load import LoadReport

T = TypeVar("T")

MAX_CONTROL_BYTES = 4 * 2**20
"""Of any message without media in it. The largest one is a `Deliver` of thousands of ranges."""
_LENGTH_BYTES = 4

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def encode_frame(message: msgspec.Struct) -> bytes:
    """For a stream: the message behind its length."""
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class Decoder(Generic[T]):
    """Decodes one kind of message, or a union of kinds, of at most `max_bytes`."""

    def __init__(self, kind: Any, max_bytes: int = MAX_CONTROL_BYTES) -> None:
        self.max_bytes = max_bytes
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def decode(self, data: bytes | bytearray | memoryview) -> T:
        """Raises `PeerProtocolError`."""
        if len(data) > self.max_bytes:
            raise PeerProtocolError(f"a message of {len(data)} bytes; the limit is {self.max_bytes}")
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PeerProtocolError(f"not a message of ours: {error}") from error


class FrameReader(Generic[T]):
    """Cuts a stream into messages, however its bytes arrive."""

    def __init__(self, decoder: Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[T]:
        """The messages that `data` completes. Raises `PeerProtocolError`, after which the stream is of no use."""
        self._buffer += data
        messages: list[T] = []
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if length > self._decoder.max_bytes:
                raise PeerProtocolError(f"a message of {length} bytes; the limit is {self._decoder.max_bytes}")
            end = _LENGTH_BYTES + length
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(self._buffer[_LENGTH_BYTES:end]))
            del self._buffer[:end]
        return messages

    @property
    def complete(self) -> bool:
        """The stream may end here: it would not cut a message."""
        return not self._buffer


def encode_request_decoder(max_bytes: int) -> Decoder[EncodeRequest]:
    """`max_bytes` is the worker's limit for a request with its media."""
    return Decoder(EncodeRequest, max_bytes)


def to_encoder_decoder() -> Decoder[ToEncoder]:
    return Decoder(ToEncoder)


def from_encoder_decoder() -> Decoder[FromEncoder]:
    return Decoder(FromEncoder)


def item_answer_decoder() -> Decoder[ItemAnswer]:
    return Decoder(ItemAnswer)


def load_report_decoder() -> Decoder[LoadReport]:
    return Decoder(LoadReport)
