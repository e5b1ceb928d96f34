"""The owner's side of the zmq transfer: a thread that puts arriving chunks into the region."""

from __future__ import annotations

import threading

import numpy as np
import zmq

from sgl_epd.errors import ConfigError, PeerProtocolError
from sgl_epd.protocol.codec import encode
from sgl_epd.transfer.base import Bytes
from sgl_epd.transfer.zmq_wire import CHUNK_BYTES, Chunk, Receipt, chunk_decoder


class Receiver:
    """Bound to `host`; writes only what carries the token and lies inside of the region."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], host: str, port: int, token: bytes, data: Bytes
    ) -> None:
        self._token = token
        self._data = data
        self._decoder = chunk_decoder()
        self.refused = 0
        """Messages that were no chunk for this region."""
        self._socket = context.socket(zmq.ROUTER)
        # Nobody can fill this process's memory: a writer that does not read its receipts loses them.
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.RCVHWM, 16)
        self._socket.setsockopt(zmq.MAXMSGSIZE, CHUNK_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.endpoint = _bind(self._socket, host, port)
        self._wake = context.socket(zmq.PAIR)
        self._wake.bind(f"inproc://receiver-{id(self)}")
        self._stop = context.socket(zmq.PAIR)
        self._stop.connect(f"inproc://receiver-{id(self)}")
        self._thread = threading.Thread(target=self._run, name="zmq-transfer-receive", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        self._stop.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake in ready:
                break
            self._receive()
        self._socket.close()
        self._wake.close()

    def _receive(self) -> None:
        frames = self._socket.recv_multipart(copy=False)
        chunk = self._chunk(frames)
        if chunk is None:
            self.refused += 1
            return
        accepted = self._put(chunk, frames[2])
        self._socket.send_multipart([frames[0].bytes, encode(Receipt(chunk.number, accepted))])

    def _chunk(self, frames: list[zmq.Frame]) -> Chunk | None:
        """What is not even a chunk with our token gets no answer."""
        if len(frames) != 3:
            return None
        try:
            chunk = self._decoder.decode(frames[1].buffer)
        except PeerProtocolError:
            return None
        return chunk if chunk.token == self._token else None

    def _put(self, chunk: Chunk, frame: zmq.Frame) -> bool:
        data = np.frombuffer(frame.buffer, np.uint8)
        end = chunk.offset + chunk.length
        if data.nbytes != chunk.length or end > self._data.nbytes:
            self.refused += 1
            return False
        self._data[chunk.offset : end] = data
        return True


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(f"the zmq transfer cannot listen on {host}:{port}: {error}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
