"""The zmq transfer's own promises: who does not know the token writes nothing, and garbage harms nobody."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from sgl_epd.errors import ConfigError, TransferError
from sgl_epd.protocol.codec import encode
from sgl_epd.protocol.peers import ZmqPeer
from sgl_epd.transfer.base import Region
from sgl_epd.transfer.pieces import Piece
from sgl_epd.transfer.zmq import ZmqTransfer
from sgl_epd.transfer.zmq_wire import CHUNK_BYTES, Chunk, receipt_decoder

MIB = 2**20
HOST = "127.0.0.1"


@pytest.fixture
def owner() -> Iterator[ZmqTransfer]:
    transfer = ZmqTransfer(HOST)
    transfer.allocate(MIB)
    yield transfer
    transfer.close()


@pytest.fixture
def raw(owner: ZmqTransfer) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 5000)
    socket.connect(owner.describe().endpoint)
    yield socket
    context.destroy(0)


def data_of(transfer: ZmqTransfer) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    assert transfer.region.data is not None
    return transfer.region.data  # type: ignore[return-value]


def send_good(owner: ZmqTransfer, raw: zmq.Socket[bytes], number: int = 99) -> None:
    """A right chunk, whose receipt tells that everything before it was dealt with."""
    raw.send_multipart([encode(Chunk(owner.describe().token, number, 0, 4)), b"good"])
    receipt = receipt_decoder().decode(raw.recv())
    assert (receipt.number, receipt.accepted) == (number, True)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"garbage"],
        [pickle.dumps(print), b"data"],
        [encode(Chunk(b"?" * 16, 1, 0, 4)), b"evil"],
        [encode(Chunk(b"?" * 16, 1, 0, 4)), b"evil", b"more"],
        [b"\x94" + b"\xc4\xff" * 100, b"evil"],
    ],
    ids=["empty", "one frame", "pickle", "wrong token", "three frames", "broken"],
)
def test_what_is_no_chunk_of_ours_is_dropped(owner: ZmqTransfer, raw: zmq.Socket[bytes], frames: list[bytes]) -> None:
    raw.send_multipart(frames)
    send_good(owner, raw)
    assert data_of(owner)[:8].tobytes() == b"good\0\0\0\0"
    assert owner.refused == 1


@pytest.mark.parametrize(("offset", "length"), [(MIB - 3, 4), (MIB, 4), (2**62, 4), (0, 5)])
def test_a_chunk_outside_of_the_region_is_refused(
    owner: ZmqTransfer, raw: zmq.Socket[bytes], offset: int, length: int
) -> None:
    raw.send_multipart([encode(Chunk(owner.describe().token, 1, offset, length)), b"evil"])
    receipt = receipt_decoder().decode(raw.recv())
    assert (receipt.number, receipt.accepted) == (1, False)
    assert not data_of(owner).any()


def test_an_oversized_message_costs_its_sender_the_connection(owner: ZmqTransfer, raw: zmq.Socket[bytes]) -> None:
    raw.send_multipart([b"x", bytes(CHUNK_BYTES + 1)])
    raw.setsockopt(zmq.RCVTIMEO, 200)
    with pytest.raises(zmq.Again):
        raw.recv()
    writer = ZmqTransfer(HOST)
    writer.allocate(MIB)
    writer.write(owner.describe(), [Piece(0, 0, MIB)], 5.0).done.result(5.0)
    writer.close()


def test_a_write_that_the_owner_refuses_is_an_error_and_its_peer_stays_reachable(owner: ZmqTransfer) -> None:
    writer = ZmqTransfer(HOST)
    writer.allocate(4 * MIB)
    peer = owner.describe()
    boast = ZmqPeer(peer.endpoint, peer.token, 4 * MIB)
    write = writer.write(boast, [Piece(0, 0, 4 * MIB)], 5.0)
    with pytest.raises(TransferError, match="refused the write"):
        write.done.result(5.0)
    write.quiet.result(5.0)
    writer.write(peer, [Piece(0, 0, MIB)], 5.0).done.result(5.0)
    writer.close()


def test_a_stale_descriptor_does_not_write_into_a_new_process() -> None:
    """The same address, another owner: the token does not fit, so nothing is written and the deadline ends it."""
    first = ZmqTransfer(HOST)
    first.allocate(MIB)
    stale = first.describe()
    first.close()
    second = ZmqTransfer(HOST, int(stale.endpoint.rpartition(":")[2]))
    second.allocate(MIB)
    writer = ZmqTransfer(HOST)
    data_of_writer = writer.allocate(MIB).data
    assert data_of_writer is not None
    data_of_writer[:] = 7
    with pytest.raises(TransferError):
        writer.write(stale, [Piece(0, 0, MIB)], 0.3).done.result(5.0)
    assert not data_of(second).any()
    writer.close()
    second.close()


def test_a_deadline_does_not_end_the_other_writes_to_the_same_peer(owner: ZmqTransfer) -> None:
    writer = ZmqTransfer(HOST)
    writer.allocate(MIB)
    late = writer.write(owner.describe(), [Piece(0, 0, MIB)] * 20, 0.0)
    fine = writer.write(owner.describe(), [Piece(0, 0, MIB)], 5.0)
    assert isinstance(late.done.exception(5.0), TransferError)
    fine.done.result(5.0)
    late.quiet.result(5.0)
    writer.close()


def test_a_taken_port_is_a_config_error(owner: ZmqTransfer) -> None:
    other = ZmqTransfer(HOST, int(owner.describe().endpoint.rpartition(":")[2]))
    with pytest.raises(ConfigError, match="cannot listen"):
        other.allocate(MIB)
    other.close()


def test_memory_of_a_gpu_is_not_for_zmq() -> None:
    transfer = ZmqTransfer(HOST)
    with pytest.raises(ConfigError, match="memory of the CPU; use mooncake"):
        transfer.register(Region(address=4096, nbytes=MIB))
    transfer.close()


def test_an_idle_transfer_uses_no_cpu(owner: ZmqTransfer) -> None:
    writer = ZmqTransfer(HOST)
    writer.allocate(MIB)
    writer.write(owner.describe(), [Piece(0, 0, MIB)], 5.0).done.result(5.0)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    writer.close()
