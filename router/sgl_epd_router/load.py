"""The router's view of a worker's load: its own in-flight work, corrected by the worker's last report.

A report is turned once, when it arrives, into a correction: reported work minus our own work at the moment that the
report was taken. The view is then `own now + correction`. What we sent before the report is in both terms and cancels;
what we sent after it is in the first only. So nothing is counted twice and our own traffic counts at once.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Work:
    """Requests, tokens and patches: the three ways of counting what a worker has to do."""

    requests: float = 0
    tokens: float = 0
    patches: float = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LoadReport:
    """What a worker said about itself. `None` means that it does not report this."""

    requests: float | None = None
    tokens: float | None = None
    patches: float | None = None
    seq: int | None = None


class LoadView:
    """Own in-flight work plus the correction from the last report, which fades once it is stale."""

    __slots__ = ("_patches_weigh", "_request_weight", "own")

    def __init__(self, *, request_weight: float = 0.0, by_patches: bool = False) -> None:
        self.own = Work()
        self._request_weight = request_weight
        self._patches_weigh = by_patches

    def start(self, tokens: float, patches: float) -> None:
        own = self.own
        own.requests += 1
        own.tokens += tokens
        own.patches += patches

    def finish(self, tokens: float, patches: float) -> None:
        own = self.own
        own.requests -= 1
        own.tokens -= tokens
        own.patches -= patches

    def view(self, now: float) -> tuple[float, float]:
        """(requests, work) now."""
        own = self.own
        work = own.patches if self._patches_weigh else own.tokens
        return own.requests, work + self._request_weight * own.requests
