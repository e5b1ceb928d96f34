"""Peers on one host: the writer maps the owner's memory and copies into it.

The memory is an anonymous file (memfd) and not a name under /dev/shm: the owner hands its descriptor to who connects to
an abstract Unix socket, and keeps the connection. So the kernel frees both memory and name when the last process is
gone, however it went, and the end of the connection tells the writer that the owner is dead. Only processes of the same
user get the descriptor, and its size is sealed: nobody can make a peer fault by truncating it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sgl_epd.errors import ConfigError, PeerLostError, TransferError, TransferTimeoutError
from sgl_epd.protocol.peers import ShmPeer
from sgl_epd.transfer.base import Bytes, Region, Transfer, Write, cpu_data
from sgl_epd.transfer.pieces import Piece, split

CHUNK_BYTES = 2**20
"""Between two chunks the writer looks whether the peer still lives and whether there is time left."""
CONNECT_S = 1.0
"""A living owner on the same host answers in far less."""
_HELLO = b"sgl-epd"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class _Door:
    """The owner's side: hands the memory's descriptor to peers of the same user, and stays connected with them."""

    def __init__(self, name: str, fd: int) -> None:
        self._fd = fd
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + name)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop = os.eventfd(0)
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="shm-transfer-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._stop:
                    self._shut()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if _user_of(connection) != os.getuid():
                connection.close()
                return
            connection.setblocking(False)
            socket.send_fds(connection, [_HELLO], [self._fd])
            self._selector.register(connection, selectors.EVENT_READ)

    def _shut(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fd != self._stop:
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        os.close(self._stop)


class _Attached:
    """A peer's memory in this process, and the connection that lives as long as the peer."""

    def __init__(self, peer: ShmPeer, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fds: list[int] = []
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect("\0" + peer.name)
            hello, fds, _, _ = socket.recv_fds(self._socket, len(_HELLO), 1)
            if hello != _HELLO or not fds or os.fstat(fds[0]).st_size < peer.nbytes:
                raise PeerLostError(f"{peer.name} is not the peer that it was")
            self.data: Bytes = np.frombuffer(mmap.mmap(fds[0], peer.nbytes), np.uint8)
            self._socket.setblocking(False)
        except TimeoutError:
            self._socket.close()
            raise TransferTimeoutError(f"{peer.name} does not hand out its memory") from None
        except OSError as error:
            self._socket.close()
            raise PeerLostError(f"{peer.name}: {error.strerror or error}") from error
        except PeerLostError:
            self._socket.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def alive(self) -> bool:
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """The memory is unmapped with its last user."""
        self._socket.close()


class ShmTransfer(Transfer[ShmPeer]):
    """`threads` copies run at once; a copy is bound by memory, so that more than two seldom help."""

    name = "shm"

    def __init__(self, threads: int = 2) -> None:
        super().__init__()
        self._address = f"sgl-epd-{os.getpid()}-{secrets.token_hex(8)}"
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="shm-transfer")
        self._peers: dict[ShmPeer, _Attached] = {}
        self._lock = threading.Lock()
        self._door: _Door | None = None
        self._fd = -1

    def allocate(self, nbytes: int) -> Region:
        self._fd = os.memfd_create(self._address, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, nbytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        region = Region.over(mmap.mmap(self._fd, nbytes))
        self.register(region)
        return region

    def describe(self) -> ShmPeer:
        return ShmPeer(self._address, self.region.nbytes)

    def _register(self, region: Region) -> None:
        if self._fd < 0:
            raise ConfigError("shared memory has to be allocated by the shm transfer itself")
        self._door = _Door(self._address, self._fd)

    def _start(self, write: Write, peer: ShmPeer, pieces: Sequence[Piece], timeout_s: float) -> None:
        self._threads.submit(self._copy, write, peer, pieces, time.monotonic() + timeout_s)

    def _copy(self, write: Write, peer: ShmPeer, pieces: Sequence[Piece], deadline: float) -> None:
        try:
            attached = self._attach(peer, deadline)
            source = cpu_data(self.region, self.name)
            for local, remote, length in split(pieces, CHUNK_BYTES):
                self._go_on(attached, peer, deadline)
                attached.data[remote : remote + length] = source[local : local + length]
            self._go_on(attached, peer, deadline)
        except TransferError as error:
            if isinstance(error, PeerLostError):
                self._drop(peer)
            # Its traceback would keep the peer's memory mapped until the garbage collector finds the circle.
            write.fail(error.with_traceback(None))
        else:
            write.succeed()

    def _go_on(self, attached: _Attached, peer: ShmPeer, deadline: float) -> None:
        if self._closed:
            raise TransferError("the shm transfer is closed")
        if not attached.alive:
            raise PeerLostError(f"{peer.name} is gone")
        if time.monotonic() > deadline:
            raise TransferTimeoutError(f"the write to {peer.name} was not done in time")

    def _attach(self, peer: ShmPeer, deadline: float) -> _Attached:
        known = self._peers.get(peer)
        if known is not None:
            return known
        # Outside of the lock, so that one silent peer does not hold up the others.
        attached = _Attached(peer, max(min(deadline - time.monotonic(), CONNECT_S), 0.001))
        with self._lock:
            first = self._peers.setdefault(peer, attached)
        if first is not attached:
            attached.close()
        return first

    def _drop(self, peer: ShmPeer) -> None:
        with self._lock:
            attached = self._peers.pop(peer, None)
        if attached is not None:
            attached.close()

    def _close(self) -> None:
        self._threads.shutdown()
        for peer in list(self._peers):
            self._drop(peer)
        if self._door is not None:
            self._door.close()
        if self._fd >= 0:
            os.close(self._fd)


def _user_of(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)
