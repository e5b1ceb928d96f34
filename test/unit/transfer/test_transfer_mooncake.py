"""How the Mooncake engine is driven, on an engine that does as a test says; the contract test runs on the real one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from peers import until

from sgl_epd.errors import ConfigError, PeerLostError, TransferError, TransferTimeoutError
from sgl_epd.protocol.peers import MooncakePeer
from sgl_epd.transfer.mooncake import PIECES_UNDER_WAY, MooncakeConfig, MooncakeTransfer, create_engine
from sgl_epd.transfer.pieces import Piece

NBYTES = 1 << 20
PEER = MooncakePeer("10.0.0.2:15000", 0x1000, NBYTES)
OTHER = MooncakePeer("10.0.0.3:15000", 0x1000, NBYTES)


class Engine:
    """Batches stay under way until `finish` is called."""

    def __init__(self) -> None:
        self.under_way: dict[int, int] = {}
        self.submitted: list[tuple[str, int, int, int]] = []
        self.most = 0
        self.probes: list[str] = []
        self.probe: Callable[[str], int] = lambda session: 0
        self.submit: Callable[[str], int | None] = lambda session: None
        self.registered: set[int] = set()
        self.register_status = 0
        self._number = 0

    def get_rpc_port(self) -> int:
        return 15001

    def register_memory(self, address: int, nbytes: int) -> int:
        self.registered.add(address)
        return self.register_status

    def unregister_memory(self, address: int) -> int:
        self.registered.remove(address)
        return 0

    def send_probe(self, session: str) -> int:
        self.probes.append(session)
        return self.probe(session)

    def transfer_submit_write(self, session: str, local: int, remote: int, length: int) -> int:
        refused = self.submit(session)
        if refused is not None:
            return refused
        self._number += 1
        self.under_way[self._number] = 0
        self.submitted.append((session, local, remote, length))
        self.most = max(self.most, len(self.under_way))
        return self._number

    def transfer_check_status(self, batch: int) -> int:
        status = self.under_way[batch]
        if status:
            del self.under_way[batch]
        return status

    def finish(self, status: int = 1, count: int | None = None) -> None:
        for batch in list(self.under_way)[:count]:
            self.under_way[batch] = status


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def transfer(engine: Engine) -> Iterator[MooncakeTransfer]:
    transfer = MooncakeTransfer(MooncakeConfig(host="10.0.0.1"), engine)
    transfer.allocate(NBYTES)
    yield transfer
    engine.finish()
    transfer.close()


def pieces(count: int) -> list[Piece]:
    return [Piece(i * 16, i * 32, 16) for i in range(count)]


def test_a_write_is_submitted_at_the_right_addresses(engine: Engine, transfer: MooncakeTransfer) -> None:
    write = transfer.write(PEER, [Piece(48, 96, 10), Piece(0, 8, 4)], 5.0)
    until(lambda: len(engine.submitted) == 2)
    base = transfer.region.address
    assert engine.submitted == [(PEER.session, base + 48, 0x1000 + 96, 10), (PEER.session, base, 0x1000 + 8, 4)]
    assert not write.done.done()
    engine.finish()
    write.done.result(5.0)
    write.quiet.result(0)
    assert transfer.describe() == MooncakePeer("10.0.0.1:15001", base, NBYTES)


def test_no_more_pieces_are_under_way_than_mooncake_queues(engine: Engine, transfer: MooncakeTransfer) -> None:
    write = transfer.write(PEER, pieces(3 * PIECES_UNDER_WAY + 1), 5.0)
    while not write.done.done():
        engine.finish()
        time.sleep(0.001)
    write.done.result(0)
    assert engine.most == PIECES_UNDER_WAY
    assert len(engine.submitted) == 3 * PIECES_UNDER_WAY + 1


def test_a_peer_has_so_many_pieces_under_way_first_come_first_served(
    engine: Engine, transfer: MooncakeTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgl_epd.transfer.mooncake._PIECE_BYTES", 100)
    late = transfer.write(PEER, [Piece(0, 0, 1000)], 0.2)
    second = transfer.write(PEER, [Piece(2000, 2000, 100)], 5.0)
    other = transfer.write(OTHER, [Piece(0, 0, 100)], 5.0)
    until(lambda: len(engine.submitted) == PIECES_UNDER_WAY + 1)
    assert [length for session, _, _, length in engine.submitted if session == PEER.session] == [100] * PIECES_UNDER_WAY
    assert isinstance(late.done.exception(5.0), TransferTimeoutError)
    assert len(engine.submitted) == PIECES_UNDER_WAY + 1, "the rest of a late write was begun"
    engine.finish()
    late.quiet.result(5.0)
    other.done.result(5.0)
    until(lambda: len(engine.submitted) == PIECES_UNDER_WAY + 2)
    engine.finish()
    second.done.result(5.0)


def test_one_failed_piece_fails_the_write_but_it_is_quiet_only_when_all_have_ended(
    engine: Engine, transfer: MooncakeTransfer
) -> None:
    write = transfer.write(PEER, pieces(3), 5.0)
    until(lambda: len(engine.submitted) == 3)
    engine.finish(-1, count=1)
    with pytest.raises(TransferError, match="could not write"):
        write.done.result(5.0)
    assert not write.quiet.done()
    engine.finish()
    write.quiet.result(5.0)


@pytest.mark.parametrize("number", [0, -1, 2**64 - 1])
def test_what_mooncake_does_not_take_fails(engine: Engine, transfer: MooncakeTransfer, number: int) -> None:
    engine.submit = lambda session: number
    write = transfer.write(PEER, pieces(1), 5.0)
    with pytest.raises(TransferError, match="could not write"):
        write.done.result(5.0)
    write.quiet.result(0)


def test_a_missed_deadline_is_told_at_once_and_quiet_follows(engine: Engine, transfer: MooncakeTransfer) -> None:
    write = transfer.write(PEER, pieces(PIECES_UNDER_WAY + 5), 0.05)
    with pytest.raises(TransferTimeoutError):
        write.done.result(5.0)
    assert not write.quiet.done()
    engine.finish()
    write.quiet.result(5.0)
    assert len(engine.submitted) == PIECES_UNDER_WAY, "it went on submitting"


def test_a_peer_is_probed_once_and_again_after_a_failure(engine: Engine, transfer: MooncakeTransfer) -> None:
    for _ in range(2):
        write = transfer.write(PEER, pieces(1), 5.0)
        until(lambda: bool(engine.under_way))
        engine.finish()
        write.done.result(5.0)
    assert engine.probes == [PEER.session]
    write = transfer.write(PEER, pieces(1), 5.0)
    until(lambda: bool(engine.under_way))
    engine.finish(-1)
    assert isinstance(write.done.exception(5.0), TransferError)
    engine.probe = lambda session: -102
    assert isinstance(transfer.write(PEER, pieces(1), 5.0).done.exception(5.0), PeerLostError)
    assert engine.probes == [PEER.session] * 2


def test_a_probe_that_hangs_holds_up_its_own_peer_only(engine: Engine, transfer: MooncakeTransfer) -> None:
    hanging = threading.Event()

    def probe(session: str) -> int:
        if session == PEER.session:
            hanging.wait(5.0)
        return 0

    engine.probe = probe
    stuck = [transfer.write(PEER, pieces(1), 0.1), transfer.write(PEER, pieces(1), 5.0)]
    fine = transfer.write(OTHER, pieces(1), 5.0)
    until(lambda: len(engine.under_way) == 1)
    engine.finish()
    fine.done.result(5.0)
    assert isinstance(stuck[0].done.exception(5.0), TransferTimeoutError)
    stuck[0].quiet.result(0)
    hanging.set()
    until(lambda: len(engine.under_way) == 1)
    engine.finish()
    stuck[1].done.result(5.0)
    assert sorted(engine.probes) == [PEER.session, OTHER.session]


def test_close_fails_what_is_under_way_and_gives_the_memory_back(engine: Engine) -> None:
    transfer = MooncakeTransfer(MooncakeConfig(), engine)
    transfer.allocate(NBYTES)
    write = transfer.write(PEER, pieces(2), 5.0)
    until(lambda: len(engine.under_way) == 2)
    threading.Timer(0.1, engine.finish).start()
    transfer.close()
    assert isinstance(write.done.exception(0), TransferError)
    write.quiet.result(0)
    assert engine.registered == set()


def test_close_keeps_memory_that_mooncake_still_reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl_epd.transfer.mooncake._CLOSE_S", 0.1)
    transfer = MooncakeTransfer(MooncakeConfig(), engine)
    address = transfer.allocate(NBYTES).address
    write = transfer.write(PEER, pieces(2), 5.0)
    until(lambda: len(engine.under_way) == 2)
    transfer.close()
    assert isinstance(write.done.exception(0), TransferError)
    assert not write.quiet.done()
    assert engine.registered == {address}


def test_memory_that_cannot_be_registered_is_a_config_error(engine: Engine) -> None:
    engine.register_status = -1
    transfer = MooncakeTransfer(MooncakeConfig(), engine)
    with pytest.raises(ConfigError, match="ulimit -l"):
        transfer.allocate(NBYTES)
    transfer.close()


def test_the_environment_forces_tcp_and_bounds_stalls_but_does_not_overrule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MooncakeConfig(protocol="tcp", stall_timeout_s=3).environment() == {
        "MC_FORCE_TCP": "1",
        "MC_TCP_PROGRESS_TIMEOUT_SEC": "3",
        "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    }
    assert MooncakeConfig(protocol="rdma", stall_timeout_s=None).environment() == {}
    pytest.importorskip("mooncake.engine")
    monkeypatch.setenv("MC_TCP_PROGRESS_TIMEOUT_SEC", "9")
    monkeypatch.delenv("MC_TCP_STATUS_TIMEOUT_SEC", raising=False)
    create_engine(MooncakeConfig(protocol="tcp", stall_timeout_s=3))
    assert os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] == "9"
    assert os.environ.pop("MC_TCP_STATUS_TIMEOUT_SEC") == "3"


def test_an_unknown_protocol_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="rdma or tcp, not 'udp'"):
        MooncakeConfig(protocol="udp")


def test_without_mooncake_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(ConfigError, match="pip install mooncake-transfer-engine"):
        create_engine(MooncakeConfig())
