"""Identical items in flight: the first one is worked on, the others wait for the same result."""

from __future__ import annotations

from typing import NamedTuple


class Waiter(NamedTuple):
    """An item of a request. One request may wait for a key several times, once for each of its copies."""

    request_id: str
    item_id: str


class InFlight:
    """Key -> those who wait for it, in order of arrival."""

    def __init__(self) -> None:
        self._waiters: dict[bytes, list[Waiter]] = {}
        self._keys: dict[str, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiters

    def join(self, key: bytes, waiter: Waiter) -> bool:
        """True for the first: somebody has to do the work now."""
        first = key not in self._waiters
        self._waiters.setdefault(key, []).append(waiter)
        self._keys.setdefault(waiter.request_id, {})[key] = None
        return first

    def waiters(self, key: bytes) -> tuple[Waiter, ...]:
        return tuple(self._waiters.get(key, ()))

    def finish(self, key: bytes) -> tuple[Waiter, ...]:
        """The work is done or has failed: those who waited. Empty if all have left."""
        waiters = tuple(self._waiters.pop(key, ()))
        for waiter in waiters:
            self._forget(waiter.request_id, key)
        return waiters

    def leave(self, request_id: str) -> tuple[bytes, ...]:
        """The request does not wait any more. The keys that nobody waits for now."""
        orphans = []
        for key in self._keys.pop(request_id, {}):
            left = [waiter for waiter in self._waiters[key] if waiter.request_id != request_id]
            if left:
                self._waiters[key] = left
            else:
                del self._waiters[key]
                orphans.append(key)
        return tuple(orphans)

    def _forget(self, request_id: str, key: bytes) -> None:
        keys = self._keys.get(request_id)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._keys[request_id]
