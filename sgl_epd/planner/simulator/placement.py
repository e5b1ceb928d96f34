"""The router's part: which workers a request goes to, by the router's own policies."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_epd.planner.simulator.flight import Flight, Item, View
from sgl_epd.planner.workload import Request
from sgl_epd_router.policies import PolicyConfig, make_policy
from sgl_epd_router.route_key import EMPTY_KEY, MediaKey, RouteKey

_BYTES_PER_TOKEN = 4
_BLIND = frozenset({"random", "round_robin", "power_of_two", "least_load"})
"""Policies that look at loads only."""


class Pool:
    """Workers of one stage and the policy that chooses among them."""

    def __init__(self, views: Sequence[View], policy: str, seed: int) -> None:
        self.views = views
        self._policy = make_policy(policy, PolicyConfig(seed=seed))
        self._reads_key = policy not in _BLIND
        self._reads_text = policy == "cache_aware"

    def choose(self, key: RouteKey, now: float) -> int:
        return self._policy.choose(self.views, key, now).pick if len(self.views) > 1 else 0

    def key(self, flight: Flight) -> RouteKey:
        """Of a whole request. Texts are made up: a stream's common beginning, then something of its own."""
        if not self._reads_key:
            return EMPTY_KEY
        media = tuple(_media_key(item) for item in flight.items)
        text = _text(flight.request) if self._reads_text else b""
        patches = sum(item.size.patches for item in flight.items)
        return RouteKey(text=text, media=media, prompt_tokens=flight.prompt_tokens, patches=patches)


def item_key(item: Item) -> RouteKey:
    """Of one item, for its encoder."""
    return RouteKey(media=(_media_key(item),), patches=item.size.patches)


def _media_key(item: Item) -> MediaKey:
    return MediaKey(item.want.key, 0, item.size.embeddings, item.size.patches)


def _text(request: Request) -> bytes:
    own = request.number.to_bytes(8, "big") * 16
    return request.stream.encode().ljust(request.prefix_tokens * _BYTES_PER_TOKEN, b".") + own
