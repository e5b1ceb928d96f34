"""MMBlockManager: who holds the blocks of one region, who waits for some, and when they are free again.

The same on the encoder and on prefill. Four rules keep it from leaking and from standing still:

* A reservation is granted whole or not at all, strictly in order of arrival. So no two can each hold half of what
  they need, and the head of the queue only ever waits for reservations that wait for nobody.
* What is found in the cache is not held while a reservation waits: it is looked up again when the grant comes.
* Every reservation, waiting or granted, has a lease; `step` ends those that ran out, whoever died.
* Blocks into which a peer may still write are not given to anybody else, whatever became of the reservation.

Nothing happens by itself: call `step` after any call that may free blocks, and at `next_at`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

from sgl_epd.cache.block_pool import BlockPool
from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.reservation import Embedding, Found, Reservation, Status, Want
from sgl_epd.errors import PayloadTooLargeError, UnavailableError


@dataclasses.dataclass(slots=True)
class Changes:
    """What `step` did."""

    granted: list[Reservation] = dataclasses.field(default_factory=list)
    expired: list[Reservation] = dataclasses.field(default_factory=list)
    promoted: list[Embedding] = dataclasses.field(default_factory=list)
    """Not filled, and the reservation that was to have it written is gone: now it is up to `writer`, the next one."""


class MMBlockManager:
    """Plain and synchronous; `now` is in seconds on any clock that does not go back."""

    def __init__(self, layout: BlockLayout, *, max_waiting: int = 1024) -> None:
        self.layout = layout
        self.evictions = 0
        self.num_unfilled = 0
        """Embeddings that have blocks and are still to be written."""
        self._pool = BlockPool(layout.num_blocks)
        self._max_waiting = max_waiting
        self._queue: deque[Reservation] = deque()
        self._granted: dict[Reservation, None] = {}
        self._index: dict[Want, Embedding] = {}
        self._cached: OrderedDict[Want, Embedding] = OrderedDict()
        """Filled and idle, least recently used first."""
        self._cached_blocks = 0
        self._quarantine: list[Embedding] = []
        self._promoted: list[Embedding] = []

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    @property
    def cached_blocks(self) -> int:
        return self._cached_blocks

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def reserve(self, owner: str, wants: Sequence[Want], now: float, lease_s: float) -> Reservation:
        """Join the queue; `step` tells of the grant.

        Raises `PayloadTooLargeError` if the whole region would not do and `UnavailableError` if the queue is full.
        """
        distinct = tuple(dict.fromkeys(wants))
        blocks = sum(self.layout.blocks_for(want.rows) for want in distinct)
        if not distinct or any(want.rows < 1 for want in distinct):
            raise ValueError(f"a reservation of {list(wants)}")
        if blocks > self.layout.num_blocks:
            raise PayloadTooLargeError(
                f"the embeddings of this request need {blocks} blocks of {self.layout.rows_per_block} tokens and the "
                f"worker has {self.layout.num_blocks}; send fewer or smaller items, or raise --mm-cache-size-mb"
            )
        if len(self._queue) >= self._max_waiting:
            raise UnavailableError(f"{len(self._queue)} requests wait for embedding memory already", retry_after_s=1.0)
        reservation = Reservation(owner, distinct, now + lease_s)
        self._queue.append(reservation)
        return reservation

    def renew(self, reservation: Reservation, now: float, lease_s: float) -> None:
        """From now on; `inf` for an owner that is sure to release it."""
        if reservation.status is not Status.ENDED:
            reservation.expires_at = now + lease_s

    def find(self, want: Want) -> Embedding | None:
        """The embedding if it is filled. Holds nothing: it may be gone after the next `step`."""
        embedding = self._index.get(want)
        if embedding is None or not embedding.filled:
            return None
        if want in self._cached:
            self._cached.move_to_end(want)
        return embedding

    def order(self, reservation: Reservation, want: Want, order: Hashable, until: float) -> bool:
        """A peer is about to be told to write this embedding, and to have stopped by `until`.

        False, and nothing done, if it is not for this reservation to have it written.
        """
        embedding = reservation.embeddings.get(want)
        if embedding is None or embedding.writer is not reservation:
            return False
        embedding.writers[order] = until
        return True

    def stopped(self, embedding: Embedding, order: Hashable) -> None:
        """The peer will not write any more. Call `step` afterwards: the blocks may be free by that."""
        embedding.writers.pop(order, None)

    def lost(self, embedding: Embedding, order: Hashable, until: float) -> None:
        """The peer is gone: what it had sent has arrived by `until`, if that is sooner than what was agreed."""
        if order in embedding.writers:
            embedding.writers[order] = min(embedding.writers[order], until)

    def fill(self, reservation: Reservation, want: Want) -> bool:
        """The embedding is in its blocks. False, and nothing done, if this reservation is not its writer (any more)."""
        embedding = reservation.embeddings.get(want)
        if embedding is None or embedding.writer is not reservation:
            return False
        embedding.filled = True
        self.num_unfilled -= 1
        return True

    def begin_send(self, reservation: Reservation, want: Want) -> Embedding:
        """From here to `end_send` the blocks are read, whatever becomes of the reservation."""
        embedding = reservation.embeddings[want]
        if not embedding.filled:
            raise ValueError("an embedding that is not filled cannot be sent")
        embedding.sends += 1
        return embedding

    def end_send(self, embedding: Embedding, now: float) -> None:
        """The blocks are not read any more (`Write.quiet`)."""
        if embedding.sends < 1:
            raise ValueError("no send is under way")
        embedding.sends -= 1
        self._settle(embedding, now, keep=True)

    def release(self, reservation: Reservation, now: float, *, keep: bool = True) -> None:
        """The owner is done or gone. Embeddings that nobody else holds are cached if filled and `keep`, else freed."""
        if reservation.status is Status.WAITING:
            self._queue.remove(reservation)
        elif reservation.status is Status.GRANTED:
            del self._granted[reservation]
        reservation.status = Status.ENDED
        for embedding in reservation.embeddings.values():
            self._let_go(reservation, embedding, now, keep)
        reservation.embeddings = {}

    def step(self, now: float) -> Changes:
        """End what ran out, free what is safe again, grant what fits."""
        changes = Changes()
        changes.expired = [r for r in (*self._queue, *self._granted) if r.expires_at <= now]
        for reservation in changes.expired:
            self.release(reservation, now)
        safe = [e for e in self._quarantine if e.unsafe_until <= now]
        self._quarantine = [e for e in self._quarantine if e.unsafe_until > now]
        for embedding in safe:
            self._pool.release(embedding.runs)
        while self._queue and self._grant(self._queue[0]):
            changes.granted.append(self._queue.popleft())
        changes.promoted = [e for e in self._promoted if e.writer is not None]
        self._promoted = []
        return changes

    def next_at(self) -> float | None:
        """When `step` has something to do even if nothing else happens."""
        times = [r.expires_at for r in (*self._queue, *self._granted)]
        times += [e.unsafe_until for e in self._quarantine]
        return min((at for at in times if at < float("inf")), default=None)

    def check(self) -> None:
        """Raises `ValueError` if a block is lost or used twice. For tests and idle time."""
        held = [run for e in (*self._index.values(), *self._quarantine) for run in e.runs]
        self._pool.check(held)
        if self._cached_blocks != sum(e.num_blocks for e in self._cached.values()):
            raise ValueError("the count of cached blocks is wrong")
        if self.num_unfilled != sum(not e.filled for e in self._index.values()):
            raise ValueError("the count of unfilled embeddings is wrong")
        for want, embedding in self._index.items():
            if embedding.idle != (want in self._cached):
                raise ValueError(f"{embedding} is idle and not cached, or the reverse")

    def _grant(self, reservation: Reservation) -> bool:
        known = [self._index[want] for want in reservation.wants if want in self._index]
        missing = [want for want in reservation.wants if want not in self._index]
        needed = sum(self.layout.blocks_for(want.rows) for want in missing)
        kept = sum(e.num_blocks for e in known if e.want in self._cached)
        if needed > self.free_blocks + self._cached_blocks - kept:
            return False
        for embedding in known:
            reservation.found[embedding.want] = Found.HIT if embedding.filled else Found.JOINED
            self._hold(reservation, embedding)
        while self.free_blocks < needed:
            self._evict()
        for want in missing:
            reservation.found[want] = Found.MISS
            embedding = Embedding(want, self._pool.allocate(self.layout.blocks_for(want.rows)))
            self._index[want] = embedding
            self._hold(reservation, embedding)
        self.num_unfilled += len(missing)
        reservation.status = Status.GRANTED
        self._granted[reservation] = None
        return True

    def _hold(self, reservation: Reservation, embedding: Embedding) -> None:
        if self._cached.pop(embedding.want, None):
            self._cached_blocks -= embedding.num_blocks
        embedding.holders[reservation] = None
        reservation.embeddings[embedding.want] = embedding

    def _let_go(self, reservation: Reservation, embedding: Embedding, now: float, keep: bool) -> None:
        was_writer = embedding.writer is reservation
        del embedding.holders[reservation]
        if was_writer and embedding.holders:
            self._promoted.append(embedding)
        self._settle(embedding, now, keep)

    def _settle(self, embedding: Embedding, now: float, keep: bool) -> None:
        """An embedding that has become idle is cached if that is worth it and safe, else its blocks go back."""
        if not embedding.idle:
            return
        if embedding.filled and keep and embedding.unsafe_until <= now:
            self._cached[embedding.want] = embedding
            self._cached_blocks += embedding.num_blocks
            return
        del self._index[embedding.want]
        self.num_unfilled -= not embedding.filled
        if embedding.unsafe_until > now:
            self._quarantine.append(embedding)
        else:
            self._pool.release(embedding.runs)

    def _evict(self) -> None:
        want, embedding = self._cached.popitem(last=False)
        del self._index[want]
        self._cached_blocks -= embedding.num_blocks
        self._pool.release(embedding.runs)
        self.evictions += 1
