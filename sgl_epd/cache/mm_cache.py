"""MMCache: what an item's embedding is called, what is known of it, and whether keeping it paid.

The transfer buffer is the cache: embeddings stay in the blocks of `MMBlockManager` until somebody needs those. This
adds the name: content, model and processor settings in 128 bits. A hit therefore needs neither the pixels nor the
processor, only the item's hash: its grid and token count are remembered here, longer than the embedding itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Found, Reservation, Want
from sgl_epd.protocol.items import HASH_BYTES, ItemMeta, Modality

_ordered = msgspec.json.Encoder(order="sorted")
Options = Mapping[str, int | float | str | bool]


def namespace(model: str, processor: Mapping[str, object], dtype: str) -> bytes:
    """What all items of a worker have in common. `model` names the weights: path and revision, or their hash.

    Workers that give the same embedding for the same item agree on it without talking.
    """
    described = _ordered.encode({"model": model, "processor": dict(processor), "dtype": dtype})
    return hashlib.blake2b(described, digest_size=32).digest()


@dataclasses.dataclass(slots=True)
class CacheStats:
    """Counted once for each item when its fate is known; tokens are embedding rows."""

    items: dict[Found, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(Found, 0))
    tokens: dict[Found, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(Found, 0))

    def add(self, found: Found, rows: int) -> None:
        self.items[found] += 1
        self.tokens[found] += rows

    @property
    def hit_rate(self) -> float:
        """Share of items for which nothing had to be encoded (or sent) once more; 0 before the first."""
        total = sum(self.items.values())
        return 1.0 - self.items[Found.MISS] / total if total else 0.0


class MMCache:
    """Names and statistics over one `MMBlockManager`, on the encoder as on prefill."""

    def __init__(self, blocks: MMBlockManager, namespace: bytes, *, max_known: int = 16384) -> None:
        self.blocks = blocks
        self.stats = CacheStats()
        self._namespace = namespace
        self._max_known = max_known
        self._known: OrderedDict[bytes, ItemMeta] = OrderedDict()

    def key(self, content_hash: bytes, modality: Modality, options: Options) -> bytes:
        """Differs whenever the embedding may: by content, by what the client set, by model and processor."""
        if len(content_hash) < HASH_BYTES:
            raise ValueError(f"a content hash of {len(content_hash)} bytes; at least {HASH_BYTES} are needed")
        described = _ordered.encode((content_hash, modality, options))
        return hashlib.blake2b(described, digest_size=HASH_BYTES, key=self._namespace).digest()

    def remember(self, meta: ItemMeta) -> None:
        """Keep grid and token count, so that the next one with this key is not opened at all."""
        self._known[meta.key] = meta
        self._known.move_to_end(meta.key)
        if len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def known(self, key: bytes) -> ItemMeta | None:
        """What an earlier item with this key was like; its embedding may be gone (`cached`)."""
        meta = self._known.get(key)
        if meta is not None:
            self._known.move_to_end(key)
        return meta

    def cached(self, meta: ItemMeta) -> bool:
        """The embedding is here and counts as used just now."""
        return self.blocks.find(Want(meta.key, meta.num_tokens)) is not None

    def count(self, reservation: Reservation) -> None:
        """Take a granted reservation into the statistics."""
        for want, found in reservation.found.items():
            self.stats.add(found, want.rows)
