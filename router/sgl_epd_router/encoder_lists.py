"""Which encoders each prefill worker may use (stock mode).

There, a prefill worker spreads the images of a request evenly over *its* list, blind to load and content. So the list
is the only thing to steer by, and the encode policy decides how:

- `consistent_hashing`: each prefill worker gets its own few encoders, by rendezvous hashing. A repeated image returns
  to its prefill worker (`cache_aware`) and so meets the same few encoders and their caches.
- all others: every encoder goes to every prefill worker.

In both, an encoder with much more work than the mean is left out until it has caught up, unless the policy is blind to
load by its nature (`random`, `round_robin`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sgl_epd_router.policies.consistent_hashing import rank
from sgl_epd_router.worker import WorkerView

_LEAST = 2
"""Encoders of a list, where there are as many: the images of one request shall be encoded side by side."""
_OVERLOAD_FACTOR = 1.5
_OVERLOAD_REQUESTS = 8.0
_BLIND = frozenset({"random", "round_robin"})


def plan(prefills: Sequence[str], encoders: Sequence[WorkerView], policy: str) -> dict[str, frozenset[str]]:
    """Prefill worker id -> ids of its encoders. `encoders` are those that may serve; every one of them is in a list."""
    names = [encoder.id for encoder in encoders]
    if policy == "consistent_hashing":
        lists = _own_few(prefills, names)
    else:
        lists = {prefill: frozenset(names) for prefill in prefills}
    busy = frozenset() if policy in _BLIND else overloaded(encoders)
    return {prefill: _without(chosen, busy, frozenset(names)) for prefill, chosen in lists.items()}


def overloaded(encoders: Sequence[WorkerView]) -> frozenset[str]:
    """Encoders far above the mean, by number and by factor; never all of them."""
    if len(encoders) < 2:
        return frozenset()
    mean = sum(encoder.requests for encoder in encoders) / len(encoders)
    limit = max(mean * _OVERLOAD_FACTOR, mean + _OVERLOAD_REQUESTS)
    return frozenset(encoder.id for encoder in encoders if encoder.requests > limit)


def _without(chosen: frozenset[str], busy: frozenset[str], everyone: frozenset[str]) -> frozenset[str]:
    """A list without its busy encoders; if nothing is left, it borrows all the others."""
    return chosen - busy or everyone - busy or chosen


def _own_few(prefills: Sequence[str], encoders: Sequence[str]) -> dict[str, frozenset[str]]:
    """Each prefill worker's best-ranked encoders, so many that all lists together name each encoder at least once."""
    if not prefills:
        return {}
    size = min(len(encoders), max(_LEAST, math.ceil(len(encoders) / len(prefills))))
    lists = {prefill: set(_ranked(prefill, encoders)[:size]) for prefill in prefills}
    for encoder in set(encoders) - set().union(*lists.values()):
        lists[max(prefills, key=lambda prefill: rank(prefill.encode(), encoder))].add(encoder)
    return {prefill: frozenset(chosen) for prefill, chosen in lists.items()}


def _ranked(prefill: str, encoders: Sequence[str]) -> list[str]:
    return sorted(encoders, key=lambda encoder: rank(prefill.encode(), encoder), reverse=True)
