"""A generation: attempts, one after the other, until one works or nobody is left to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sgl_epd.errors import NotFoundError, UnavailableError
from sgl_epd_router.attempt import Attempt
from sgl_epd_router.context import RouterContext
from sgl_epd_router.outgoing import IdRewriter, Outgoing
from sgl_epd_router.verdict import Verdict

MAX_DEATHS = 2
"""A request whose workers keep dying is not given to a third: it may be what kills them."""


class RejectedError(Exception):
    """No attempt worked; `verdict` holds the answer for the client."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.status)
        self.verdict = verdict


class Generation:
    """One sample of one request. `begin`, then read the attempt; `close` in the end, whatever happened."""

    def __init__(self, context: RouterContext, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.aborted = False
        self.on_prefilled: Callable[[], None] | None = None
        """Called when the prompt has been prefilled."""
        self._context = context
        self._give_up_at = context.clock() + context.deadlines.total_s
        self._deaths = 0
        self._failed: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()

    async def begin(self) -> Attempt:
        """The attempt that works. Raises `RejectedError`, or a `RequestError` when there is no worker to ask at all."""
        failed: Verdict | None = None
        while True:
            attempt = self._start(failed)
            verdict = await attempt.settle()
            if verdict.ok:
                return attempt
            self._remember(attempt)
            role = attempt.blamed_role
            self.close()
            self._deaths += verdict.died
            delay_s = self._delay_s(verdict)
            if delay_s is None:
                raise RejectedError(verdict)
            self._context.metrics.retries.inc(role, "died" if verdict.died else str(verdict.status))
            failed = verdict
            await asyncio.sleep(delay_s)

    def rewriter(self) -> IdRewriter | None:
        """Puts the client's own ids into the answer, if it chose any."""
        if self.attempt is None or not self.outgoing.public_ids:
            return None
        return IdRewriter(self.outgoing.public_ids, self.attempt.ids.rids)

    def request_abort(self) -> None:
        """The client wants the request to end early."""
        self.aborted = True
        if self.attempt is not None:
            self.attempt.request_abort()

    def close(self) -> None:
        """End the current attempt."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            for rid in attempt.ids.rids:
                self._context.requests.discard(rid, self)
            attempt.close()

    def _start(self, failed: Verdict | None) -> Attempt:
        self.attempts += 1
        try:
            self.attempt = self._select(failed)
        except (UnavailableError, NotFoundError):
            if failed is None:
                raise
            # Nobody is left to ask: the last worker's own words say more than "no worker can take the request".
            raise RejectedError(failed) from None
        self.attempt.on_prefilled = self.on_prefilled
        for rid in self.attempt.ids.rids:
            self._context.requests.add(rid, self)
        return self.attempt

    def _select(self, failed: Verdict | None) -> Attempt:
        """Rather workers that have not failed yet; if there are none, those that at least were there to answer.

        Not if they have asked for time, though: then it is the client's to come back later.
        """
        try:
            return Attempt(self._context, self.outgoing, self._failed, self._give_up_at)
        except UnavailableError:
            if failed is None or failed.retry_after_s is not None or self._lost == self._failed:
                raise
            return Attempt(self._context, self.outgoing, self._lost, self._give_up_at)

    def _remember(self, attempt: Attempt) -> None:
        """Note which workers failed, and which of them could not be reached or went away."""
        for leg in attempt.legs:
            if leg.verdict is not None and not leg.verdict.ok:
                worker = frozenset([leg.lease.worker.id])
                self._failed |= worker
                if leg.error is not None:
                    self._lost |= worker

    def _delay_s(self, verdict: Verdict) -> float | None:
        """How long to wait before the next attempt; None when there shall be none."""
        if not verdict.retryable or self.aborted or self._deaths >= MAX_DEATHS:
            return None
        now = self._context.clock()
        return self._context.retrier.delay_s(self.attempts, now, self._give_up_at)
