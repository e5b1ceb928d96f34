"""Peers in one process: for tests and for the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_epd.errors import PeerLostError
from sgl_epd.protocol.peers import LocalPeer
from sgl_epd.transfer.base import Region, Transfer, Write, cpu_data
from sgl_epd.transfer.pieces import Piece


class LocalHub:
    """Where local transfers find each other."""

    def __init__(self) -> None:
        self.transfers: dict[str, LocalTransfer] = {}


class LocalTransfer(Transfer[LocalPeer]):
    """Copies at once, in the caller's thread."""

    name = "local"

    def __init__(self, hub: LocalHub, address: str) -> None:
        super().__init__()
        self._hub = hub
        self._address = address

    def describe(self) -> LocalPeer:
        return LocalPeer(self._address, self.region.nbytes)

    def _register(self, region: Region) -> None:
        cpu_data(region, self.name)
        self._hub.transfers[self._address] = self

    def _start(self, write: Write, peer: LocalPeer, pieces: Sequence[Piece], timeout_s: float) -> None:
        target = self._hub.transfers.get(peer.name)
        if target is None:
            write.fail(PeerLostError(f"there is no local peer {peer.name!r}"))
            return
        source, destination = cpu_data(self.region, self.name), cpu_data(target.region, self.name)
        for local, remote, length in pieces:
            destination[remote : remote + length] = source[local : local + length]
        write.succeed()

    def _close(self) -> None:
        if self._hub.transfers.get(self._address) is self:
            del self._hub.transfers[self._address]
