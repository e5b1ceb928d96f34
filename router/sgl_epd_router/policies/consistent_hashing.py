"""`consistent_hashing`: the same content goes to the same worker, and no worker gets much more than its share.

Rendezvous hashing: each worker's rank for a key is a hash of both, so a worker that joins or leaves moves only its own
share of the keys, and router replicas agree without talking. Loads are bounded: the first worker in rank whose work
stays within `load_factor` times the mean, plus this item, takes it. The least loaded worker always does, so one exists.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from sgl_epd_router.policies.base import Choice, PolicyConfig
from sgl_epd_router.policies.least_load import least_loaded
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import WorkerView

_hash = xxhash.xxh3_64_intdigest


def hash_key(key: RouteKey) -> bytes:
    """What is kept together: the client's own key, else the first media item, else the prompt."""
    if key.routing_key:
        return key.routing_key.encode()
    return key.media[0].content_hash if key.media else key.text


def rank(content: bytes, worker_id: str) -> int:
    """A worker's rank for a key; the highest wins."""
    return _hash(content, _hash(worker_id.encode()))


class ConsistentHashing:
    name = "consistent_hashing"
    uses_load = True

    def __init__(self, config: PolicyConfig) -> None:
        self._factor = config.load_factor
        self._cursor = config.seed or 0

    def choose(self, workers: Sequence[WorkerView], key: RouteKey, now: float) -> Choice:
        content = hash_key(key)
        if not content:
            self._cursor += 1
            return Choice(least_loaded(workers, self._cursor))
        ranks = [rank(content, worker.id) for worker in workers]
        best = max(range(len(workers)), key=ranks.__getitem__)
        item = max(1, key.patches or key.prompt_tokens)
        bound = self._factor * (sum(worker.work for worker in workers) + item) / len(workers)
        if workers[best].work <= bound:
            return Choice(best, 0.0, "hit")
        fitting = [index for index, worker in enumerate(workers) if worker.work <= bound]
        return Choice(max(fitting, key=ranks.__getitem__), 0.0, "balance")
