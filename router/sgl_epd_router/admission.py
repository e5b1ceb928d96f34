"""How many requests run at once, who waits, and who is next.

Pure: `AdmissionQueue` decides, `Gate` (in `gate.py`) waits. The counters of running and waiting requests lie on the
`CounterBoard`, so the limits hold for all router processes together.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from itertools import count

from sgl_epd.errors import RateLimitError
from sgl_epd_router.counters import CounterBoard

RUNNING = 0
WAITING = 1
_MAX_PRIORITY = 1000
_HEAP_SLACK = 64


@dataclasses.dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Names and defaults of upstream's flags; `max_concurrent` of -1 means no limit."""

    max_concurrent: int = -1
    queue_size: int = 100
    queue_timeout_s: float = 60.0
    priority_step_s: float = 10.0
    """Waiting time that one level of priority is worth: urgent requests go first, but nobody waits for ever."""


class Ticket:
    """One request's place: admitted, waiting, refused (pushed out by a more urgent one) or gone."""

    __slots__ = ("admitted", "notify", "rank", "refused", "waiting")

    def __init__(self, rank: tuple[float, int]) -> None:
        self.rank = rank
        self.admitted = False
        self.waiting = False
        self.refused = False
        self.notify: Callable[[], None] | None = None
        """Called once, when a waiting ticket is admitted or refused."""

    def __lt__(self, other: Ticket) -> bool:
        return self.rank < other.rank


class AdmissionQueue:
    def __init__(self, config: AdmissionConfig, board: CounterBoard | None = None) -> None:
        self._config = config
        self._board = board or CounterBoard()
        self._heap: list[Ticket] = []
        self._numbers = count()
        self._mine_waiting = 0

    @property
    def running(self) -> int:
        return self._board.total(RUNNING)

    @property
    def waiting(self) -> int:
        return self._board.total(WAITING)

    @property
    def has_waiters(self) -> bool:
        """Whether requests of this process wait."""
        return self._mine_waiting > 0

    def enter(self, priority: int, now: float) -> Ticket:
        """Admit at once or queue. Raises `RateLimitError` (429) if the queue is full of requests as urgent as this."""
        urgency = max(-_MAX_PRIORITY, min(priority, _MAX_PRIORITY)) * self._config.priority_step_s
        ticket = Ticket((now - urgency, next(self._numbers)))
        if not self._mine_waiting and self._has_room():
            self._admit(ticket)
        else:
            self._enqueue(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A request has ended, or gives up waiting. The next ones are admitted."""
        if ticket.admitted:
            ticket.admitted = False
            self._board.add(RUNNING, -1)
        elif ticket.waiting:
            self._stop_waiting(ticket)
        self.pump()

    def pump(self) -> None:
        """Admit waiting requests while there is room; also called when another process may have made some."""
        while self._heap and (not self._heap[0].waiting or self._has_room()):
            ticket = heapq.heappop(self._heap)
            if ticket.waiting:
                self._stop_waiting(ticket)
                self._admit(ticket)
                self._tell(ticket)

    def _has_room(self) -> bool:
        return self._config.max_concurrent < 0 or self.running < self._config.max_concurrent

    def _admit(self, ticket: Ticket) -> None:
        ticket.admitted = True
        self._board.add(RUNNING, 1)

    def _enqueue(self, ticket: Ticket) -> None:
        if self.waiting >= self._config.queue_size:
            self._push_out_for(ticket)
        ticket.waiting = True
        self._mine_waiting += 1
        self._board.add(WAITING, 1)
        heapq.heappush(self._heap, ticket)

    def _push_out_for(self, ticket: Ticket) -> None:
        """A full queue gives its least urgent place to a more urgent request."""
        last = max((other for other in self._heap if other.waiting), default=None)
        if last is None or last < ticket:
            raise self.full()
        last.refused = True
        self._stop_waiting(last)
        self._tell(last)

    def full(self) -> RateLimitError:
        return RateLimitError(
            f"the router is at its limit of {self._config.max_concurrent} requests and its queue is full",
            code="queue_full",
            retry_after_s=1.0,
        )

    def _stop_waiting(self, ticket: Ticket) -> None:
        # Its entry stays in the heap and is skipped when it comes up, or swept when such entries are most of it.
        ticket.waiting = False
        self._mine_waiting -= 1
        self._board.add(WAITING, -1)
        if len(self._heap) > 2 * self._mine_waiting + _HEAP_SLACK:
            self._heap = [other for other in self._heap if other.waiting]
            heapq.heapify(self._heap)

    def _tell(self, ticket: Ticket) -> None:
        if ticket.notify is not None:
            ticket.notify()
