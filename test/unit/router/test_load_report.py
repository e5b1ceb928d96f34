"""What workers say about their load, as SGLang 0.5.23 says it."""

from __future__ import annotations

import msgspec
import pytest

from sgl_epd.protocol.load import LoadReport as NativeReport
from sgl_epd_router.load import LoadReport
from sgl_epd_router.load_report import (
    EncoderCounters,
    RankLoad,
    native_report,
    parse_load_stat,
    parse_loads,
    sum_ranks,
)
from sgl_epd_router.load_stream import StreamPorts, stream_ports
from sgl_epd_router.worker import Role


def loads(*ranks: dict[str, object]) -> bytes:
    return msgspec.json.encode({"timestamp": "2026-01-01T00:00:00", "version": "0.5.23", "loads": list(ranks)})


RANK = {
    "dp_rank": 0,
    "num_running_reqs": 3,
    "num_waiting_reqs": 2,
    "num_waiting_uncached_tokens": 700,
    "num_used_tokens": 5000,
    "num_total_tokens": 6000,
    "token_usage": 0.25,
    "disaggregation": {"mode": "prefill"},
}


@pytest.mark.parametrize(("role", "tokens"), [(Role.PREFILL, 700), (Role.DECODE, 6000), (Role.REGULAR, 6000)])
def test_the_tokens_that_matter_depend_on_the_role(role: Role, tokens: int) -> None:
    assert parse_loads(loads(RANK), role) == LoadReport(requests=5, tokens=tokens)


def test_ranks_are_summed() -> None:
    assert parse_loads(loads(RANK, RANK, RANK), Role.PREFILL) == LoadReport(requests=15, tokens=2100)


def test_our_own_encode_workers_tell_patches_and_what_they_have_seen() -> None:
    native = NativeReport(
        worker_id="e0-17",
        seq=7,
        seen={"r1": 55, "r2": 9},
        waiting_items=3,
        waiting_patches=700,
        running_items=1,
        running_patches=200,
    )
    report = parse_loads(msgspec.json.encode(native), Role.ENCODE, "r1")
    assert report == LoadReport(requests=4, patches=900, seq=7, epoch="e0-17", seen=55)
    assert native_report(native, "stranger").seen is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"loads": 3}', b'{"loads": [{"num_running_reqs": "x"}]}', b"<html>"])
def test_anything_else_is_no_report(body: bytes) -> None:
    with pytest.raises(ValueError, match="not an answer"):
        parse_loads(body, Role.PREFILL)


def frames(*fields: object, sequence: int = 9) -> list[bytes]:
    return [b"load", sequence.to_bytes(8, "big"), msgspec.msgpack.encode(["LoadStat", *fields])]


def test_the_stream_is_read_by_position() -> None:
    sequence, load = parse_load_stat(frames(3, 2, 5000, 90000, 0, 700, 6000, 256, 12345, 678))
    assert sequence == 9
    assert sum_ranks([load], Role.PREFILL) == LoadReport(requests=5, tokens=700)
    assert sum_ranks([load], Role.DECODE) == LoadReport(requests=5, tokens=6000)


def test_the_short_form_of_older_publishers_is_read_too() -> None:
    assert parse_load_stat(frames(3, 2, 5000, 90000))[1] == RankLoad(3, 2, 0, 5000, 0)


@pytest.mark.parametrize(
    "message",
    [
        [],
        [b"load", b"1", b""],
        [b"load", bytes(8), b"\xc1"],
        [b"load", bytes(8), msgspec.msgpack.encode(["Other", 1, 2, 3])],
        [b"load", bytes(8), msgspec.msgpack.encode(["LoadStat", 1])],
        [b"load", bytes(8), msgspec.msgpack.encode({"a": 1})],
        [b"load", bytes(8), msgspec.msgpack.encode(["LoadStat", "x", 2, 3])],
    ],
)
def test_garbage_on_the_stream_is_refused(message: list[bytes]) -> None:
    with pytest.raises(ValueError):
        parse_load_stat(message)


@pytest.mark.parametrize(
    ("info", "ports"),
    [
        ({}, None),
        ({"kv_events": None}, None),
        ({"kv_events": {"publisher": "zmq", "endpoint_port_base": 5557}}, None),
        ({"kv_events": {"load_endpoint_port_base": 5558}}, StreamPorts(5558, 1)),
        ({"kv_events": {"load_endpoint_port_base": 5558, "dp_size": 4}}, StreamPorts(5558, 4)),
        ({"kv_events": {"load_endpoint_port_base": 99999, "dp_size": 1}}, None),
        ({"kv_events": {"load_endpoint_port_base": 5558, "dp_size": 10**6}}, None),
    ],
)
def test_the_streams_ports_come_from_server_info(info: dict[str, object], ports: StreamPorts | None) -> None:
    assert stream_ports(info) == ports


def metrics(received: float, good: float, bad: float = 0.0) -> bytes:
    labels = 'model_name="m",dp_rank="0",modality="IMAGE"'
    return (
        f"# TYPE sglang:encoder_requests_received_total counter\n"
        f"sglang:encoder_requests_received_total{{{labels}}} {received}\n"
        f'sglang:encoder_requests_total{{{labels},status="success"}} {good}\n'
        f'sglang:encoder_requests_total{{{labels},status="error"}} {bad}\n'
        f"sglang:encoder_queue_wait_seconds_sum{{{labels}}} 1.5\n"
    ).encode()


def test_an_encoders_requests_in_flight_are_received_minus_ended() -> None:
    counters = EncoderCounters()
    assert counters.observe(metrics(10, 6, 1), 0.0) == LoadReport(requests=3)
    assert counters.observe(metrics(2, 0), 1.0) == LoadReport(requests=2)


def test_what_upstream_forgot_to_count_is_not_taken_for_load_for_ever() -> None:
    counters = EncoderCounters()
    assert counters.observe(metrics(10, 8), 0.0).requests == 2
    assert counters.observe(metrics(10, 8), 150.0).requests == 2
    assert counters.observe(metrics(10, 8), 201.0).requests == 0
    assert counters.observe(metrics(13, 9), 202.0).requests == 2


def test_before_its_first_request_an_encoder_has_no_counters_and_no_load() -> None:
    assert EncoderCounters().observe(b"python_info 1\n", 0.0) == LoadReport(requests=0)
