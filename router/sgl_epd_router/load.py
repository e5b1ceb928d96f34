"""The router's view of a worker's load: its own in-flight work, corrected by the worker's last report.

A report is turned once, when it arrives, into a correction: reported work minus our own work at the moment that the
report was taken. The view is then `own now + correction`. What we sent before the report is in both terms and cancels;
what we sent after it is in the first only. So nothing is counted twice and our own traffic counts at once.
"""

from __future__ import annotations

import dataclasses
from itertools import takewhile

from sgl_epd_router.counters import CounterBoard, Work


@dataclasses.dataclass(frozen=True, slots=True)
class LoadReport:
    """What a worker said about itself. `None` means that it does not report this."""

    requests: float
    tokens: float | None = None
    patches: float | None = None
    seq: int | None = None
    """Grows with each report of a worker; one that does not is late and dropped."""
    epoch: str | None = None
    """New with each start of the worker, where it tells; `seq` then starts anew."""
    seen: int | None = None
    """The last of this router's dispatch numbers that the worker had received; only our own workers tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadModel:
    """How a role's work is weighed. Work is patches for encode and tokens for the rest."""

    by_patches: bool = False
    request_weight: float = 0.0
    """Work that each request adds, whatever its size."""
    unknown_work: float = 512.0
    """Work of a request of which only the existence is known, because it is another router's."""
    stale_after_s: float = 5.0
    """A report counts fully until then, and fades to nothing in as long again."""
    track_dispatch: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Correction:
    """Reported minus own, at the moment of the report. Requests never negative: we know our own for certain."""

    requests: float = 0.0
    work: float = 0.0
    at: float = float("-inf")


class LoadView:
    """Own in-flight work plus the correction from the last report."""

    __slots__ = (
        "_all_at",
        "_at",
        "_board",
        "_epoch",
        "_sent",
        "_seq",
        "_slot",
        "_work_kind",
        "correction",
        "dispatched",
        "model",
        "report",
    )

    def __init__(self, model: LoadModel, board: CounterBoard, slot: int) -> None:
        self.model = model
        self.correction = Correction()
        self.report: LoadReport | None = None
        self.dispatched = 0
        self._board = board
        self._slot = slot
        self._at = board.mine + board.offset(slot)
        self._all_at = tuple(row + board.offset(slot) for row in board.rows)
        self._work_kind = 2 if model.by_patches else 1
        self._seq: int | None = None
        self._epoch: str | None = None
        self._sent: dict[int, Work] = {}

    @property
    def own(self) -> Work:
        """What this router (all its processes) has in flight there."""
        return self._board.work(self._slot)

    @property
    def mine_busy(self) -> bool:
        """Whether this process has requests in flight there."""
        return self._board.cells[self._at] > 0

    def start(self, tokens: int, patches: int) -> int:
        """Count a request that is being sent; returns its dispatch number."""
        cells, at = self._board.cells, self._at
        cells[at] += 1
        cells[at + 1] += tokens
        cells[at + 2] += patches
        self.dispatched += 1
        if self.model.track_dispatch:
            self._sent[self.dispatched] = Work(1, tokens, patches)
        return self.dispatched

    def finish(self, tokens: int, patches: int, number: int) -> None:
        cells, at = self._board.cells, self._at
        cells[at] -= 1
        cells[at + 1] -= tokens
        cells[at + 2] -= patches
        if self.model.track_dispatch:
            self._sent.pop(number, None)

    def observe(self, report: LoadReport, now: float, before: Work | None = None) -> bool:
        """Take in a report. `before` is `own` as it was when the report was asked for. False if it came too late."""
        if self._late(report, now):
            return False
        self._seq, self._epoch = report.seq, report.epoch
        self.report = report
        own = self._own_in_report(report, before)
        others = max(0.0, report.requests - own.requests)
        self.correction = Correction(others, self._work_correction(report, own, others), now)
        return True

    def view(self, now: float) -> tuple[float, float]:
        """(requests, work) now."""
        model, cells, correction = self.model, self._board.cells, self.correction
        # Called for every worker of a pool and every request, so without a call or an object more than needed.
        requests: float = 0
        work: float = 0
        for at in self._all_at:
            requests += cells[at]
            work += cells[at + self._work_kind]
        weight = 2.0 - (now - correction.at) / model.stale_after_s
        if weight > 0.0:
            weight = min(weight, 1.0)
            requests += weight * correction.requests
            work = max(0.0, work + weight * correction.work)
        return requests, work + model.request_weight * requests

    def _late(self, report: LoadReport, now: float) -> bool:
        """A lower number soon after a higher one is an old report; after silence it is a restarted worker."""
        if report.seq is None or self._seq is None or report.seq > self._seq or report.epoch != self._epoch:
            return False
        return now - self.correction.at < self.model.stale_after_s

    def _own_in_report(self, report: LoadReport, before: Work | None) -> Work:
        """Our own work that the report may contain. The larger of two readings, so that it never passes for others'."""
        own = self.own
        if report.seen is not None and self.model.track_dispatch:
            seen = report.seen
            later = list(takewhile(lambda item: item[0] > seen, reversed(self._sent.items())))
            unseen = [sum(column) for column in zip(*(work for _, work in later), strict=True)] or [0, 0, 0]
            return Work(*(mine - new for mine, new in zip(own, unseen, strict=True)))
        return own if before is None else Work(*map(max, own, before))

    def _work_correction(self, report: LoadReport, own: Work, others: float) -> float:
        reported = report.patches if self.model.by_patches else report.tokens
        if reported is None:
            return others * self.model.unknown_work
        # Requests that the report does not show (stock prefill workers forget those that wait for embeddings) keep our
        # own estimate: only the visible share of it is replaced by what was reported.
        visible = min(1.0, report.requests / own.requests) if own.requests > 0 else 1.0
        return reported - visible * (own.patches if self.model.by_patches else own.tokens)
