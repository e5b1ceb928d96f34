"""Peers anywhere, over ZeroMQ: no more than pyzmq is needed, at the price of one copy on the owner's side."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import zmq

from sgl_epd.protocol.peers import ZmqPeer
from sgl_epd.transfer.base import Region, Transfer, Write, cpu_data
from sgl_epd.transfer.pieces import Piece
from sgl_epd.transfer.zmq_receive import Receiver
from sgl_epd.transfer.zmq_send import Sender


class ZmqTransfer(Transfer[ZmqPeer]):
    """`host` is where peers reach this process; port 0 takes any free one."""

    name = "zmq"

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__()
        self._host, self._port = host, port
        self._token = secrets.token_bytes(16)
        self._context = zmq.Context()
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None

    @property
    def refused(self) -> int:
        """Messages that were no writes into this region."""
        return self._receiver.refused if self._receiver else 0

    def describe(self) -> ZmqPeer:
        region = self.region
        assert self._receiver is not None
        return ZmqPeer(self._receiver.endpoint, self._token, region.nbytes)

    def _register(self, region: Region) -> None:
        data = cpu_data(region, self.name)
        self._receiver = Receiver(self._context, self._host, self._port, self._token, data)
        self._sender = Sender(self._context, data)

    def _start(self, write: Write, peer: ZmqPeer, pieces: Sequence[Piece], timeout_s: float) -> None:
        assert self._sender is not None
        self._sender.submit(write, peer, pieces, time.monotonic() + timeout_s)

    def _close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        if self._receiver is not None:
            self._receiver.close()
        self._context.term()
