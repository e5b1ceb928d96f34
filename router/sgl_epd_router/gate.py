"""The waiting side of admission: a request's task stands here until it may run."""

from __future__ import annotations

import asyncio

from sgl_epd.errors import RequestTimeoutError, UnavailableError
from sgl_epd_router.admission import AdmissionConfig, AdmissionQueue, Ticket
from sgl_epd_router.counters import CounterBoard

_OTHERS_CHECK_S = 0.01


class Gate:
    """`ticket = await gate.enter(priority)`, then `gate.leave(ticket)` in a `finally`."""

    def __init__(self, config: AdmissionConfig, board: CounterBoard) -> None:
        self.queue = AdmissionQueue(config, board)
        self.draining = False
        self._config = config
        self._shared = len(board.rows) > 1
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, priority: int = 0) -> Ticket:
        """Raises 429 (queue full), 408 (waited too long) or 503 (the router is draining)."""
        if self.draining:
            raise UnavailableError("the router is draining and takes no new requests", retry_after_s=5)
        ticket = self.queue.enter(priority, self._loop.time())
        if not ticket.admitted:
            await self._wait(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        self.queue.leave(ticket)

    async def _wait(self, ticket: Ticket) -> None:
        done = asyncio.Event()
        ticket.notify = done.set
        self._watch_others()
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                await done.wait()
        except TimeoutError:
            if not ticket.admitted and not ticket.refused:
                self.queue.leave(ticket)
                raise RequestTimeoutError(
                    f"no place within {self._config.queue_timeout_s:g} s in the queue", code="queue_timeout",
                    retry_after_s=1.0,
                ) from None  # fmt: skip
        except asyncio.CancelledError:
            self.queue.leave(ticket)
            raise
        if ticket.refused:
            raise self.queue.full()

    def _watch_others(self) -> None:
        """Places that other processes free are found by looking, a hundred times a second, while somebody waits."""
        if self._shared and self._timer is None:
            self._timer = self._loop.call_later(_OTHERS_CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        self.queue.pump()
        if self.queue.has_waiters:
            self._watch_others()
