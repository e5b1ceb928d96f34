"""Peers over the Mooncake transfer engine: RDMA, or TCP where there is none; memory of the CPU or of a GPU.

Written against mooncake-transfer-engine 0.3.13 (`mooncake.engine.TransferEngine`). What it does decides how it is used:

* `transfer_submit_write` and `transfer_check_status` do not wait; the batch calls spin on a core until they are done.
  So one thread submits, sleeps for most of the time that a write of the size takes at best, and then asks now and
  then. On few cores that is faster than spinning, which takes the core from Mooncake's own threads.
* Over TCP a status "completed" means that the owner has the bytes in place (protocol v2), so no message of ours has to
  say it again. What was submitted cannot be called back: after a missed deadline a write stays unquiet until Mooncake
  has done it or given it up, the latter `stall_timeout_s` after its last progress. What waits for a connection starts
  that time anew, so no more pieces are submitted to a peer than it has connections, first come first served. The rest
  of a late write is never begun.
* The first write to a peer fetches its metadata under a lock that all writes need, and waits up to a minute for a peer
  that accepts connections but does not answer. So a new peer is probed first, by a thread of its own and without the
  lock, and is written to only once it has answered.
* A piece costs about as much as 100 KiB, however small it is: coalesce.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from sgl_epd.errors import ConfigError, PeerLostError, TransferError, TransferTimeoutError
from sgl_epd.protocol.peers import MooncakePeer
from sgl_epd.transfer.base import Region, Transfer, Write
from sgl_epd.transfer.pieces import Piece, split

PIECES_UNDER_WAY = 4
"""To one peer: Mooncake's default number of TCP connections (`MC_TCP_LANES_PER_PEER`)."""
_PIECE_BYTES = 16 * 2**20
_SURE_SHARE, _PAUSE_SHARE, _LEAST_PAUSE_S, _MOST_PAUSE_S = 0.6, 1 / 8, 20e-6, 5e-3
_TELLING_BYTES = 2**20
"""Smaller writes say more about latency than about pace."""
_CLOSE_S = 2.0
_NO_BATCH = (0, -1, 2**64 - 1)


@dataclasses.dataclass(frozen=True)
class MooncakeConfig:
    """`device` names RDMA devices, comma-separated; empty for all."""

    host: str = "127.0.0.1"
    protocol: str = "rdma"
    device: str = ""
    stall_timeout_s: int | None = 1
    """A TCP write without progress for so long has failed. None leaves Mooncake's own 30 s: the setting holds for the
    whole process, so for one that also sends KV it has to suit both."""

    def __post_init__(self) -> None:
        if self.protocol not in ("rdma", "tcp"):
            raise ConfigError(f"the Mooncake protocol is rdma or tcp, not {self.protocol!r}")

    def environment(self) -> dict[str, str]:
        """Mooncake's settings; what the environment says already wins."""
        settings = {}
        if self.protocol == "tcp":
            settings["MC_FORCE_TCP"] = "1"
        if self.stall_timeout_s is not None:
            settings["MC_TCP_PROGRESS_TIMEOUT_SEC"] = str(self.stall_timeout_s)
            settings["MC_TCP_STATUS_TIMEOUT_SEC"] = str(self.stall_timeout_s)
        return settings


def create_engine(config: MooncakeConfig) -> Any:
    """A `TransferEngine` of this process. Raises `ConfigError` if Mooncake is missing or cannot start."""
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise ConfigError(
            f"the mooncake transfer needs Mooncake ({error}): pip install mooncake-transfer-engine, or "
            "mooncake-transfer-engine-non-cuda where there is no GPU; or use another transfer"
        ) from error
    for name, value in config.environment().items():
        os.environ.setdefault(name, value)
    engine = TransferEngine()
    if engine.initialize(config.host, "P2PHANDSHAKE", config.protocol, config.device) != 0:
        raise ConfigError(f"Mooncake does not start on {config.host} with {config.protocol} {config.device}".rstrip())
    return engine


@dataclasses.dataclass(slots=True)
class _Job:
    """One write: pieces still to be submitted, and those under way by Mooncake's numbers."""

    write: Write
    peer: MooncakePeer
    pieces: deque[Piece]
    deadline: float
    started_at: float = 0.0
    submitted_at: float = 0.0
    """The last piece."""
    batches: dict[int, int] = dataclasses.field(default_factory=dict)
    """Number -> bytes."""
    error: TransferError | None = None

    @property
    def over(self) -> bool:
        return not self.batches and not self.pieces

    def give_up(self, error: TransferError) -> None:
        """Submit no more of it; it is quiet when Mooncake is done with what is under way."""
        self.pieces.clear()
        if self.error is None:
            self.error = error
            self.write.fail(error, quiet=not self.batches)


class _Probed(NamedTuple):
    session: str
    alive: bool


class MooncakeTransfer(Transfer[MooncakePeer]):
    """`engine` may be one that the process has already, such as SGLang's; then `host` must be the one it was given."""

    name = "mooncake"

    def __init__(self, config: MooncakeConfig, engine: Any = None) -> None:
        super().__init__()
        self._config = config
        self._engine = create_engine(config) if engine is None else engine
        self._news: queue.SimpleQueue[_Job | _Probed | None] = queue.SimpleQueue()
        self._jobs: list[_Job] = []
        self._peers: dict[str, bool] = {}
        """Sessions that were probed -> whether they have answered yet."""
        self._pace = float("inf")
        """Seconds a byte takes at best."""
        self._under_way: Counter[str] = Counter()
        """Pieces by session."""
        self._closing_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="mooncake-transfer", daemon=True)
        self._thread.start()

    def describe(self) -> MooncakePeer:
        session = f"{self._config.host}:{self._engine.get_rpc_port()}"
        return MooncakePeer(session, self.region.address, self.region.nbytes)

    def _register(self, region: Region) -> None:
        if self._engine.register_memory(region.address, region.nbytes) != 0:
            raise ConfigError(
                f"Mooncake cannot register {region.nbytes} bytes; RDMA needs a high enough limit for locked memory "
                "(ulimit -l)"
            )

    def _start(self, write: Write, peer: MooncakePeer, pieces: Sequence[Piece], timeout_s: float) -> None:
        self._news.put(_Job(write, peer, deque(split(pieces, _PIECE_BYTES)), time.monotonic() + timeout_s))

    def _close(self) -> None:
        self._news.put(None)
        self._thread.join()
        # If Mooncake still reads the region, to take it away would be worse than to keep it until the process ends.
        if not self._jobs:
            if self._region is not None:
                self._engine.unregister_memory(self._region.address)
            self._engine = None

    def _run(self) -> None:
        while True:
            self._take()
            now = time.monotonic()
            for job in self._jobs:
                self._advance(job, now)
            self._jobs = [job for job in self._jobs if not job.over]
            if self._closing_at < float("inf") and (not self._jobs or now >= self._closing_at + _CLOSE_S):
                return

    def _take(self) -> None:
        """Wait for news, but not longer than a write under way is likely to take."""
        try:
            news = self._news.get(timeout=self._pause_s())
        except queue.Empty:
            return
        if isinstance(news, _Job):
            self._jobs.append(news)
        elif isinstance(news, _Probed):
            self._met(news)
        else:
            self._closing_at = time.monotonic()
            for job in self._jobs:
                job.give_up(TransferError("the mooncake transfer is closed"))

    def _pause_s(self) -> float | None:
        now = time.monotonic()
        busy = [self._pause_for(job, now) for job in self._jobs if job.batches]
        if busy:
            return min(max(min(busy), _LEAST_PAUSE_S), _MOST_PAUSE_S)
        deadlines = [job.deadline for job in self._jobs]
        return max(min(deadlines) - now, 0.0) if deadlines else None

    def _pause_for(self, job: _Job, now: float) -> float:
        elapsed = now - job.submitted_at
        best = sum(job.batches.values()) * self._pace if self._pace < float("inf") else 0.0
        return max(_SURE_SHARE * best - elapsed, _PAUSE_SHARE * elapsed)

    def _advance(self, job: _Job, now: float) -> None:
        statuses = {batch: self._engine.transfer_check_status(batch) for batch in job.batches}
        over = [batch for batch, status in statuses.items() if status != 0]
        for batch in over:
            del job.batches[batch]
        self._under_way[job.peer.session] -= len(over)
        if any(status < 0 for status in statuses.values()):
            self._fail(job)
        elif now >= job.deadline:
            job.give_up(TransferTimeoutError(f"the write to {job.peer.session} was not done in time"))
        elif job.pieces and self._is_known(job.peer.session):
            self._submit(job, now)
        if job.over:
            if job.error is None and job.write.nbytes >= _TELLING_BYTES:
                # Down at once and up slowly: the best of late, not the mean of a busy time.
                self._pace = min((now - job.started_at) / job.write.nbytes, 1.05 * self._pace)
            # Changes only the quiet of a job that was given up.
            job.write.succeed()

    def _submit(self, job: _Job, now: float) -> None:
        peer = job.peer
        while job.pieces and self._under_way[peer.session] < PIECES_UNDER_WAY:
            job.started_at = job.started_at or now
            job.submitted_at = now
            local, remote, length = job.pieces.popleft()
            batch = self._engine.transfer_submit_write(
                peer.session, self.region.address + local, peer.address + remote, length
            )
            if batch in _NO_BATCH:
                self._fail(job)
                return
            job.batches[batch] = length
            self._under_way[peer.session] += 1

    def _fail(self, job: _Job) -> None:
        self._peers.pop(job.peer.session, None)
        job.give_up(TransferError(f"Mooncake could not write to {job.peer.session}: it is gone, or refused"))

    def _is_known(self, session: str) -> bool:
        if session not in self._peers:
            self._peers[session] = False
            threading.Thread(
                target=self._probe, args=(self._engine, session), name="mooncake-probe", daemon=True
            ).start()
        return self._peers[session]

    def _probe(self, engine: Any, session: str) -> None:
        self._news.put(_Probed(session, engine.send_probe(session) == 0))

    def _met(self, probed: _Probed) -> None:
        if probed.alive:
            self._peers[probed.session] = True
            return
        self._peers.pop(probed.session, None)
        for job in self._jobs:
            if job.peer.session == probed.session:
                job.give_up(PeerLostError(f"{probed.session} does not answer"))
