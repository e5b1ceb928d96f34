"""The shm transfer's own promises: nothing outlives its processes, and only the same user gets in."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from peers import Bench, bench, until

from sgl_epd.errors import ConfigError, PeerLostError
from sgl_epd.protocol.peers import ShmPeer
from sgl_epd.transfer.base import Region
from sgl_epd.transfer.pieces import Piece
from sgl_epd.transfer.shm import ShmTransfer

MIB = 2**20


@pytest.fixture
def made() -> Iterator[Bench]:
    with bench("shm", MIB) as made:
        yield made


def mapped(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_killed_owner_leaves_no_name_and_no_memory(made: Bench) -> None:
    target = made.process()
    peer = target.descriptor
    assert isinstance(peer, ShmPeer)
    made.transfer.write(peer, [Piece(0, 0, MIB)], 5.0).done.result(5.0)
    assert mapped(peer.name)
    assert not [entry for entry in os.listdir("/dev/shm") if entry in peer.name]
    target.kill()
    error = made.transfer.write(peer, [Piece(0, 0, MIB)], 5.0).done.exception(5.0)
    assert isinstance(error, PeerLostError)
    until(lambda: not mapped(peer.name))
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect("\0" + peer.name)


def test_a_killed_writer_is_forgotten_by_the_owner(made: Bench) -> None:
    peer = made.transfer.describe()
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as writer:
        writer.connect("\0" + peer.name)
        _, fds, _, _ = socket.recv_fds(writer, 16, 1)
        os.close(fds[0])
        until(lambda: len(os.listdir("/proc/self/fd")) == before + 2)
    until(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_another_user_gets_nothing(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect("\0" + made.transfer.describe().name)
        stranger.settimeout(5.0)
        assert socket.recv_fds(stranger, 16, 1)[:2] == (b"", [])


def test_nobody_can_cut_the_memory_off(made: Bench) -> None:
    with socket.socket(socket.AF_UNIX) as writer:
        writer.connect("\0" + made.transfer.describe().name)
        _, fds, _, _ = socket.recv_fds(writer, 16, 1)
        with pytest.raises(PermissionError):
            os.ftruncate(fds[0], 0)
        os.close(fds[0])


def test_a_peer_smaller_than_it_says_is_refused(made: Bench) -> None:
    peer = made.process().descriptor
    assert isinstance(peer, ShmPeer)
    write = made.transfer.write(ShmPeer(peer.name, 2 * MIB), [Piece(0, MIB, 8)], 5.0)
    with pytest.raises(PeerLostError, match="not the peer that it was"):
        write.done.result(5.0)


def test_foreign_memory_cannot_be_shared() -> None:
    transfer = ShmTransfer()
    with pytest.raises(ConfigError, match="has to be allocated by the shm transfer"):
        transfer.register(Region.over(np.zeros(MIB, np.uint8)))
    transfer.close()
