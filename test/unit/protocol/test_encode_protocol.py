"""Messages come back as they were sent; nothing else gets through."""

from __future__ import annotations

import itertools
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import PeerProtocolError
from sgl_epd.protocol import codec
from sgl_epd.protocol.delivery import Deliver, Delivered, DeliveryAck, DeliveryFailed, Destination
from sgl_epd.protocol.encode import CancelRequest, EncodeRequest, ItemDone, ItemFailed
from sgl_epd.protocol.items import EmbeddingFormat, Inline, ItemMeta, MMItem, Modality, Url
from sgl_epd.protocol.load import LoadReport
from sgl_epd.protocol.peers import LocalPeer, MooncakePeer, Peer, ShmPeer, ZmqPeer

KEY = bytes(range(16))
ITEM = MMItem(
    item_id="r:0", modality=Modality.IMAGE, content_hash=KEY, source=Inline(b"\xff\xd8"), patches=256,
    options={"min_pixels": 3136, "detail": "high", "fps": 2.5, "keep": True},
)  # fmt: skip
VIDEO = MMItem(item_id="r:1", modality=Modality.VIDEO, content_hash=KEY * 2, source=Url("https://x/v.mp4"), patches=0)
META = ItemMeta(
    item_id="r:0", key=KEY, modality=Modality.VIDEO, content_hash=KEY, grid=(4, 32, 32), num_tokens=1024, patches=4096,
    format=EmbeddingFormat(1536, "bfloat16"), cached=False, extras={"second_per_grid_ts": [0.5]},
)  # fmt: skip
PEERS: list[Peer] = [
    LocalPeer("p0", 4096),
    ShmPeer("sgl-epd-1", 4096),
    ZmqPeer("tcp://10.0.0.1:23601", KEY, 4096),
    MooncakePeer("10.0.0.1:15002", 0x7F0000000000, 4096),
]
DESTINATION = Destination(item_id="r:0", key=KEY, ranges=((0, 4096), (8192, 17)))


def deliver(peer: Peer = PEERS[0]) -> Deliver:
    return Deliver(request_id="r", rank=0, num_ranks=2, peer=peer, items=(DESTINATION,), lease_s=30.0)


def reply(data: dict[str, object]) -> bytes:
    return msgspec.msgpack.encode(data)


def test_encode_request_keeps_every_field_and_the_raw_bytes() -> None:
    request = EncodeRequest(request_id="r", router_id="a", dispatch=7, items=(ITEM, VIDEO), timeout_s=60.0)
    data = codec.encode(request)
    assert codec.encode_request_decoder(2**20).decode(data) == request
    assert b"\xff\xd8" in data


@pytest.mark.parametrize(
    "message",
    [*(deliver(peer) for peer in PEERS), DeliveryAck("r", "r:0", 1), CancelRequest("r")],
    ids=lambda message: type(message).__name__,
)
def test_messages_to_the_encoder(message: Deliver | DeliveryAck | CancelRequest) -> None:
    assert codec.to_encoder_decoder().decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Delivered("r", "r:0", 1),
        DeliveryFailed(request_id="r", item_id="r:0", rank=0, message="gone", retry=True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_from_the_encoder(message: Delivered | DeliveryFailed) -> None:
    assert codec.from_encoder_decoder().decode(codec.encode(message)) == message


def test_load_report() -> None:
    report = LoadReport(worker_id="e0", seq=4, seen={"a": 7}, waiting_items=3, waiting_patches=900, patches_per_s=1e4)
    assert codec.load_report_decoder().decode(codec.encode(report)) == report


def test_sizes_follow_from_the_messages() -> None:
    assert EmbeddingFormat(1536, "bfloat16").row_bytes == 3072
    assert EmbeddingFormat(1536, "float32").row_bytes == 6144
    assert DESTINATION.nbytes == 4096 + 17


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"num_ranks": 0},
        {"lease_s": 0},
        {"lease_s": float("nan")},
        {"lease_s": 1e9},
        {"request_id": ""},
        {"items": []},
        {"peer": {"type": "pickle", "name": "x", "nbytes": 1}},
        {"peer": {"type": "zmq", "endpoint": "tcp://a:1", "token": b"short", "nbytes": 1}},
        {"items": [{"item_id": "i", "key": KEY, "ranges": []}]},
        {"items": [{"item_id": "i", "key": KEY[:15], "ranges": [(0, 1)]}]},
        {"items": [{"item_id": "i", "key": KEY, "ranges": [(-1, 1)]}]},
        {"items": [{"item_id": "i", "key": KEY, "ranges": [(0, 0)]}]},
        {"items": [{"item_id": "i", "key": KEY, "ranges": [(0, 2.5)]}]},
        {"type": "unknown"},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(change: dict[str, object]) -> None:
    good = msgspec.to_builtins(deliver(), builtin_types=(bytes,))
    assert codec.to_encoder_decoder().decode(reply(good)) == deliver()
    with pytest.raises(PeerProtocolError):
        codec.to_encoder_decoder().decode(reply(good | change))


def test_a_kind_for_another_direction_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        codec.to_encoder_decoder().decode(codec.encode(Delivered("r", "i", 0)))


@pytest.mark.parametrize("data", [b"", b"\xc1", pickle.dumps({"type": "cancel"}), b"{}", b"\x91" * 100_000])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        codec.to_encoder_decoder().decode(data)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decoder in (codec.to_encoder_decoder(), codec.from_encoder_decoder(), codec.load_report_decoder()):
        with pytest.raises(PeerProtocolError):
            decoder.decode(data)


def test_a_message_beyond_the_limit_is_not_looked_at() -> None:
    request = EncodeRequest(request_id="r", router_id="a", dispatch=0, items=(ITEM,), timeout_s=1.0)
    data = codec.encode(request)
    assert codec.encode_request_decoder(len(data)).decode(data) == request
    with pytest.raises(PeerProtocolError, match=f"a message of {len(data)} bytes; the limit is {len(data) - 1}"):
        codec.encode_request_decoder(len(data) - 1).decode(data)


ANSWERS = [META, ItemFailed(item_id="r:1", status=400, message="truncated", retry=False), ItemDone("r:0")]


@given(st.lists(st.sampled_from(ANSWERS), max_size=6), st.lists(st.integers(0, 2000)))
def test_a_stream_is_cut_right_wherever_its_bytes_are_split(answers: list[object], cuts: list[int]) -> None:
    data = b"".join(codec.encode_frame(answer) for answer in answers)  # type: ignore[arg-type]
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = codec.FrameReader(codec.item_answer_decoder())
    out = [m for start, end in itertools.pairwise(bounds) for m in reader.feed(data[start:end])]
    assert out == answers
    assert reader.complete


def test_a_stream_that_ends_inside_a_message_is_not_complete() -> None:
    reader = codec.FrameReader(codec.item_answer_decoder())
    assert reader.feed(codec.encode_frame(META)[:-1]) == []
    assert not reader.complete


def test_a_stream_with_an_absurd_length_is_given_up_before_its_bytes_arrive() -> None:
    reader = codec.FrameReader(codec.item_answer_decoder())
    with pytest.raises(PeerProtocolError, match="4294967295 bytes"):
        reader.feed(b"\xff\xff\xff\xff")
