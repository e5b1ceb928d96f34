"""`cache_aware`: the worker whose KV cache holds the longest prefix of the prompt, unless the pool is out of balance.

A prompt is cut at fixed, growing distances from its start (and after each media item, which counts by its content
hash), and the pieces are hashed in a chain. A table maps each chain value to the workers that last saw it. This costs
about a dozen hashes a prompt whatever its length, where a character tree costs a walk over all of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import xxhash

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.policies.least_load import least_loaded
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView

MAX_TEXT = 2**20
_MAX_HOLDERS = 4
_MAX_ENTRIES = 2**17
_BYTES_PER_TOKEN = 4

Path = list[tuple[int, int]]
"""(bytes from the start of the prompt, chain value), shortest first. Media count as tokens x 4 bytes."""


def _distances() -> tuple[int, ...]:
    """64, 96, 128, 192, 256, 384, ...: a match is known to within a third of its length."""
    cuts, step = [], 64
    while step <= MAX_TEXT:
        cuts += [step, step + step // 2]
        step *= 2
    return tuple(cuts)


_CUTS = _distances()
_hash = xxhash.xxh3_64_intdigest


def prefix_path(key: RouteKey) -> Path:
    """The cuts of a prompt; the last one is its end."""
    path: Path = []
    value, at, extra = 0, 0, 0
    for item in key.media:
        value, at = _cut_text(key.text, at, min(item.offset, len(key.text)), extra, value, path)
        value = _hash(item.content_hash, value)
        extra += max(1, item.tokens) * _BYTES_PER_TOKEN
        path.append((at + extra, value))
    _cut_text(key.text, at, min(len(key.text), MAX_TEXT), extra, value, path)
    return path


def _cut_text(text: bytes, at: int, end: int, extra: int, value: int, path: Path) -> tuple[int, int]:
    """Hash `text[at:end]` into the chain, with a cut at each distance on the way and one at `end`."""
    for cut in _CUTS[bisect_right(_CUTS, at + extra) : bisect_left(_CUTS, end + extra)]:
        value = _hash(text[at : cut - extra], value)
        path.append((cut, value))
        at = cut - extra
    if end > at:
        value = _hash(text[at:end], value)
        path.append((end + extra, value))
    return value, max(at, end)


class PrefixTable:
    """Chain value -> workers that saw it, latest first; bounded by bytes of prompt and by entries.

    Two generations stand in for a list in order of use: entries go to the young one, and when that is full the old one
    is dropped. So keeping the order costs nothing, and what is used stays.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes // 2
        self._young: dict[int, tuple[int, ...]] = {}
        self._old: dict[int, tuple[int, ...]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def holders(self, value: int) -> tuple[int, ...]:
        return self._young.get(value) or self._old.get(value, ())

    def insert(self, path: Path, incarnation: int) -> None:
        young, start = self._young, 0
        for end, value in path:
            known = young.get(value)
            if known is None:
                known = self._old.get(value, ())
                self._bytes += end - start
                young[value] = ()
            if not known or known[0] != incarnation:
                known = (incarnation, *(i for i in known if i != incarnation))[:_MAX_HOLDERS]
            young[value] = known
            start = end
        if self._bytes > self._max_bytes or len(young) > _MAX_ENTRIES:
            self._old, self._young, self._bytes = young, {}, 0


class CacheAware:
    name = "cache_aware"
    uses_load = True

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._cursor = config.seed or 0
        self.table = PrefixTable(config.max_tree_size)

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        path = prefix_path(key)
        choice = self._choose(workers, path)
        if path:
            self.table.insert(path, workers[choice.pick].incarnation)
        return choice

    def _choose(self, workers: Sequence[WorkerView], path: Path) -> Choice:
        if len(workers) > 1 and self._unbalanced(workers):
            return Choice(least_loaded(workers), 0.0, "balance")
        pick, length = self._longest_match(workers, path)
        share = length / path[-1][0] if path else 0.0
        if share > self._config.cache_threshold:
            return Choice(pick, share, "hit")
        self._cursor += 1
        # Among equally idle workers the prompt decides, so that other router processes choose alike.
        start = path[-1][1] if path else self._cursor
        return Choice(least_loaded(workers, start), 0.0, "miss")

    def _longest_match(self, workers: Sequence[WorkerView], path: Path) -> tuple[int, int]:
        """(worker, bytes that it has seen); among several holders the one with the least work."""
        present = {worker.incarnation: index for index, worker in enumerate(workers)}
        for length, value in reversed(path):
            found = [present[i] for i in self.table.holders(value) if i in present]
            if found:
                return min(found, key=lambda index: workers[index].work), length
        return 0, 0

    def _unbalanced(self, workers: Sequence[WorkerView]) -> bool:
        counts = [worker.requests for worker in workers]
        most, least = max(counts), min(counts)
        config = self._config
        return most - least > config.balance_abs_threshold and most > least * config.balance_rel_threshold
