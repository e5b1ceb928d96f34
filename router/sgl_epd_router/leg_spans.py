"""A span for each lease: how long a request was at a worker, and how it ended there."""

from __future__ import annotations

from sgl_epd_router.lease import Lease
from sgl_epd_router.tracing import CURRENT_SPAN
from sgl_epd_router.worker import Outcome


class LegSpans:
    """A `LeaseObserver`. A lease is taken in the task of its request, so its span becomes a child of the request's."""

    def on_start(self, lease: Lease) -> None:
        parent = CURRENT_SPAN.get()
        if parent is not None:
            attributes = {"sgl_epd.worker": lease.worker.id, "sgl_epd.policy": lease.policy}
            lease.span = parent.child(lease.role.value, attributes)

    def on_finish(self, lease: Lease, outcome: Outcome, now: float) -> None:
        if lease.span is not None:
            lease.span.end(error=None if outcome is Outcome.OK else outcome.value)
