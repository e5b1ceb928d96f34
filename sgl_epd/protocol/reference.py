"""What a chat body carries in place of an image on its way to prefill and decode: where the embedding is to be had, and
all that ids and positions depend on.

A reference is the `url` of an `image_url`, so that the body stays one that SGLang's OpenAI door accepts:
`sgl-epd-ref:` and the message in URL-safe base64. It is the router's word: whoever can send requests to prefill and
decode can claim any key, so they belong behind the router, which must not pass a client's URL of this scheme on. Which
encoders prefill talks to is prefill's own list, whatever a reference says.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

import msgspec

from sgl_epd.errors import BadRequestError, PeerProtocolError
from sgl_epd.protocol.codec import Decoder, encode
from sgl_epd.protocol.items import Amount, Count, EmbeddingFormat, Id, ItemMeta, Key, Modality

SCHEME = "sgl-epd-ref:"
MAX_CHARS = 64 * 1024
"""The extras of a long video are the largest part."""
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")


class Reference(msgspec.Struct, frozen=True, kw_only=True, tag="reference"):
    """One item of a request, encoded or being encoded."""

    encoder: Annotated[str, msgspec.Meta(pattern="^https?://[^/?#@]+$", max_length=512)]
    item_id: Id
    key: Key
    """Equal keys are equal embeddings: prefill's prefix cache and embedding cache go by it."""
    modality: Modality
    grid: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=4096)]
    num_tokens: Count
    format: EmbeddingFormat
    extras: dict[str, list[float]] = {}


_decoder: Decoder[Reference] = Decoder(Reference, MAX_CHARS)


def reference(encoder: str, meta: ItemMeta) -> Reference:
    """To the item of which the encoder at the base URL `encoder` has told the metadata."""
    return Reference(
        encoder=encoder,
        item_id=meta.item_id,
        key=meta.key,
        modality=meta.modality,
        grid=meta.grid,
        num_tokens=meta.num_tokens,
        format=meta.format,
        extras=meta.extras,
    )


def is_reference(url: str) -> bool:
    return url.startswith(SCHEME)


def to_url(ref: Reference) -> str:
    return SCHEME + base64.urlsafe_b64encode(encode(ref)).decode().rstrip("=")


def from_url(url: str) -> Reference:
    """Raises `BadRequestError` for whatever `to_url` could not have written."""
    text = url.removeprefix(SCHEME)
    if text == url or len(text) > MAX_CHARS or not _BASE64.fullmatch(text):
        raise BadRequestError("an image reference is malformed", param="messages", code="invalid_reference")
    try:
        return _decoder.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (PeerProtocolError, binascii.Error) as error:
        raise BadRequestError(
            f"an image reference is malformed: {error}", param="messages", code="invalid_reference"
        ) from error
