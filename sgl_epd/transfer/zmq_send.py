"""The writer's side of the zmq transfer: one thread that serves all writes to all peers.

A connection carries at most `WINDOW_BYTES` of chunks without a receipt: so many bytes lie in sockets and queues, and a
deadline that passes stops the rest. Chunks are sent from the region without a copy. A peer that is silent for a second
is lost, with all writes to it.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from sgl_epd.errors import PeerLostError, PeerProtocolError, TransferError, TransferTimeoutError
from sgl_epd.protocol.codec import encode
from sgl_epd.protocol.peers import ZmqPeer
from sgl_epd.transfer.base import Bytes, Write
from sgl_epd.transfer.pieces import Piece, split
from sgl_epd.transfer.zmq_wire import CHUNK_BYTES, Chunk, receipt_decoder

WINDOW_BYTES = 4 * CHUNK_BYTES
_HEARTBEAT_MS, _SILENCE_MS = 250, 1000
_POLL_S = 0.5
_RELEASE_S = 1.0
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


@dataclasses.dataclass(slots=True)
class _Job:
    """One write: what is still to be sent, and what is on its way."""

    write: Write
    peer: ZmqPeer
    pieces: deque[Piece]
    deadline: float
    unconfirmed: int = 0

    def give_up(self, error: TransferError) -> None:
        """Send no more of it; it is quiet when what is on its way has arrived."""
        self.pieces.clear()
        self.deadline = float("inf")
        self.write.fail(error, quiet=False)

    @property
    def over(self) -> bool:
        return not self.pieces and not self.unconfirmed


class _Link:
    """The connection to one peer and the writes that use it, served in order of arrival."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], peer: ZmqPeer, source: Bytes) -> None:
        self.peer = peer
        self.jobs: deque[_Job] = deque()
        self._source = source.data
        self._sent: dict[int, tuple[_Job, int]] = {}
        self._trackers: list[zmq.MessageTracker] = []
        self._next = 0
        self._window = WINDOW_BYTES
        self._decoder = receipt_decoder()
        self.socket = context.socket(zmq.DEALER)
        for name, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 0),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS),
            (zmq.CONNECT_TIMEOUT, _SILENCE_MS),
            (zmq.HANDSHAKE_IVL, _SILENCE_MS),
        ):
            self.socket.setsockopt(name, value)
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(_LOST)
        self.socket.connect(peer.endpoint)

    def pump(self) -> None:
        """Send what the window allows."""
        for job in self.jobs:
            while job.pieces and self._window >= job.pieces[0].length:
                self._send(job, job.pieces.popleft())
            if job.pieces:
                return

    def _send(self, job: _Job, piece: Piece) -> None:
        chunk = Chunk(self.peer.token, self._next, piece.remote, piece.length)
        data = self._source[piece.local : piece.local + piece.length]
        self.socket.send(encode(chunk), zmq.SNDMORE)
        tracker = self.socket.send(data, copy=False, track=True)
        if tracker is not None and not tracker.done:
            self._trackers.append(tracker)
        self._sent[self._next] = (job, piece.length)
        self._next += 1
        self._window -= piece.length
        job.unconfirmed += 1

    def receive(self) -> None:
        """Take receipts. Raises `PeerLostError` if the peer does not keep to the protocol."""
        while True:
            try:
                receipt = self._decoder.decode(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            except PeerProtocolError as error:
                raise PeerLostError(f"{self.peer.endpoint} does not speak our protocol") from error
            job, length = self._sent.pop(receipt.number, (None, 0))
            self._window += length
            if job is not None:
                job.unconfirmed -= 1
                if not receipt.accepted:
                    job.give_up(TransferError(f"{self.peer.endpoint} refused the write"))
        self._trackers = [tracker for tracker in self._trackers if not tracker.done]

    def settle(self, now: float) -> None:
        """Give up what is late, end what is over."""
        for job in self.jobs:
            if job.deadline <= now:
                job.give_up(TransferTimeoutError(f"the write to {self.peer.endpoint} was not done in time"))
        for job in [job for job in self.jobs if job.over]:
            self.jobs.remove(job)
            # Changes only the quiet of a job that was given up.
            job.write.succeed()

    def lost(self) -> bool:
        """The connection has ended or never came about."""
        events = 0
        while self.monitor.poll(0):
            events |= recv_monitor_message(self.monitor)["event"]
        return bool(events & _LOST)

    def close(self, error: TransferError) -> None:
        """Fail every write. Without linger the socket drops what it has not sent, and libzmq lets go of its frames."""
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(0)
        quiet = _released(self._trackers)
        for job in self.jobs:
            job.write.fail(error, quiet=quiet)


def _released(trackers: Sequence[zmq.MessageTracker]) -> bool:
    try:
        for tracker in trackers:
            tracker.wait(_RELEASE_S)
    except zmq.NotDone:
        return False
    return True


class Sender:
    """`submit` may be called from any thread; all else happens in the sender's own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], source: Bytes) -> None:
        self._context = context
        self._source = source
        self._submitted: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._links: dict[ZmqPeer, _Link] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="zmq-transfer-send", daemon=True)
        self._thread.start()

    def submit(self, write: Write, peer: ZmqPeer, pieces: Sequence[Piece], deadline: float) -> None:
        self._submitted.put(_Job(write, peer, deque(split(pieces, CHUNK_BYTES)), deadline))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._submitted.put(None)
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        while True:
            ready = dict(self._poller.poll(self._timeout_ms()))
            if self._wake in ready:
                os.eventfd_read(self._wake)
                if not self._accept():
                    break
            now = time.monotonic()
            for link in list(self._links.values()):
                self._serve(link, now)
        for link in list(self._links.values()):
            self._drop(link, TransferError("the zmq transfer is closed"))

    def _timeout_ms(self) -> int:
        deadlines = [job.deadline for link in self._links.values() for job in link.jobs]
        seconds = min(deadlines, default=float("inf")) - time.monotonic()
        return max(0, int(1000 * min(seconds, _POLL_S)) + 1)

    def _accept(self) -> bool:
        """Take what was submitted. False when it is time to end."""
        going_on = True
        while not self._submitted.empty():
            job = self._submitted.get()
            if job is None:
                going_on = False
            else:
                self._link(job.peer).jobs.append(job)
        return going_on

    def _link(self, peer: ZmqPeer) -> _Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link(self._context, peer, self._source)
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def _serve(self, link: _Link, now: float) -> None:
        try:
            link.receive()
            if link.lost():
                raise PeerLostError(f"{link.peer.endpoint} is gone")
            link.settle(now)
            link.pump()
        except PeerLostError as error:
            self._drop(link, error)

    def _drop(self, link: _Link, error: TransferError) -> None:
        del self._links[link.peer]
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.close(error)
