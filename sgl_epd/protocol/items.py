"""Media items: what goes to an encoder, and what is known of an embedding before it exists."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

HASH_BYTES = 16
"""Shortest content hash: 128 bits, so that two items of a lifetime of traffic do not meet in one key."""

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
ContentHash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=64)]
Key = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
"""Content, model and processor settings in one: what an embedding is stored under (`cache.mm_cache`)."""
Count = Annotated[int, msgspec.Meta(gt=0)]
Amount = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class Modality(StrEnum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """The item's own bytes, as the client sent them but out of base64."""

    data: Annotated[bytes, msgspec.Meta(min_length=1)]


class Url(msgspec.Struct, frozen=True, tag="url"):
    """For the encoder to fetch, under its limits."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=16384)]


class MMItem(msgspec.Struct, frozen=True, kw_only=True):
    """One image, video or audio clip of a request."""

    item_id: Id
    """Unique among all requests and attempts, so that an answer to a given-up attempt is never taken for another."""
    modality: Modality
    content_hash: ContentHash
    """Of the bytes; of the URL as long as nobody has fetched it."""
    source: Inline | Url
    patches: Amount
    """The router's estimate of the work, by which it placed the item."""
    options: dict[str, int | float | str | bool] = {}
    """What the client set for this item and the processor understands; part of the key."""


class EmbeddingFormat(msgspec.Struct, frozen=True):
    """The same for every item of a model."""

    dim: Count
    """Elements of a row; a model with deepstack features counts those as well."""
    dtype: Annotated[str, msgspec.Meta(pattern="^(float32|float16|bfloat16)$")]

    @property
    def row_bytes(self) -> int:
        return self.dim * (4 if self.dtype == "float32" else 2)


class ItemMeta(msgspec.Struct, frozen=True, kw_only=True, tag="meta"):
    """Encoder to router, as soon as the item's size is known and long before its embedding is.

    Everything that prefill and decode need to lay out ids and positions without a pixel.
    """

    item_id: Id
    key: Key
    modality: Modality
    content_hash: ContentHash
    """Of the bytes, also when the request had only a URL's."""
    grid: tuple[Amount, ...]
    """As the model's processor gives it: (t, h, w) for Qwen-VL."""
    num_tokens: Count
    """Rows of the embedding and placeholders in the prompt."""
    patches: Amount
    format: EmbeddingFormat
    cached: bool
    """The encoder holds the embedding already."""
    extras: dict[str, list[float]] = {}
    """Whatever else positions depend on, such as the timestamps of a video's frames."""
