"""What the router reads of stock SGLang, against SGLang's own classes: loads, the encoder list, encoders' counters.

No model and no server process: these fail when upstream changes a wire format that the router relies on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from typing import Any

import msgspec
import pytest

from sgl_epd.net.client import HttpClient
from sgl_epd_router.encoder_sync import EncoderSync
from sgl_epd_router.load import LoadReport
from sgl_epd_router.load_report import EncoderCounters, parse_load_stat, parse_loads, sum_ranks
from sgl_epd_router.load_stream import StreamPorts, stream_ports
from sgl_epd_router.policies import PolicyConfig, make_policy
from sgl_epd_router.registry import Registry, RegistryConfig
from sgl_epd_router.worker import Role, WorkerSpec

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here", allow_module_level=True)


# Importing SGLang on a CPU warns about what needs a GPU.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_load_stream() -> None:
    from sglang.srt.managers.scheduler_components.load_publisher import LoadStat

    stat = LoadStat(
        num_running_reqs=3,
        num_waiting_reqs=2,
        num_tokens=5000,
        max_total_num_tokens=90000,
        num_waiting_uncached_tokens=700,
        num_total_tokens=6000,
    )
    sequence, load = parse_load_stat([b"load", (41).to_bytes(8, "big"), msgspec.msgpack.encode(stat)])
    assert sequence == 41
    assert sum_ranks([load], Role.PREFILL) == LoadReport(requests=5, tokens=700)
    assert sum_ranks([load], Role.DECODE) == LoadReport(requests=5, tokens=6000)


def test_where_the_load_stream_is() -> None:
    from types import SimpleNamespace

    from sglang.srt.disaggregation.kv_events import resolve_load_pub_range

    resolved, reason = resolve_load_pub_range(
        kv_endpoint="tcp://*:5557", replay_endpoint=None, dp_size=2, load_publish_endpoint="auto"
    )
    assert resolved is not None, reason
    described = SimpleNamespace(load_endpoint_port_base=resolved[1], dp_size=2)
    assert stream_ports({"kv_events": vars(described)}) == StreamPorts(resolved[1], 2)


def test_v1_loads() -> None:
    from sglang.srt.managers.load_snapshot import LoadSnapshot

    snapshot = LoadSnapshot(
        dp_rank=0,
        timestamp=0.0,
        num_running_reqs=3,
        num_waiting_reqs=2,
        num_waiting_uncached_tokens=700,
        num_used_tokens=5000,
        num_total_tokens=6000,
    )
    body = msgspec.json.encode({"loads": [snapshot.to_dict({"core"}), snapshot.to_dict({"core"})]})
    assert parse_loads(body, Role.PREFILL) == LoadReport(requests=10, tokens=1400)
    assert parse_loads(body, Role.DECODE) == LoadReport(requests=10, tokens=12000)


def test_an_encoders_counters() -> None:
    from prometheus_client import REGISTRY, generate_latest
    from sglang.srt.observability.metrics_collector import EncoderMetricsCollector

    collector = EncoderMetricsCollector({"model_name": "m", "dp_rank": "0"})
    labels = {"model_name": "m", "dp_rank": "0", "modality": "IMAGE"}
    collector.requests_received_total.labels(**labels).inc(5)
    collector.requests_total.labels(**labels, status="success").inc(2)
    collector.requests_total.labels(**labels, status="error").inc(1)
    assert EncoderCounters().observe(generate_latest(REGISTRY), 0.0) == LoadReport(requests=2)


async def test_a_prefill_workers_encoder_list() -> None:
    from sglang.srt.disaggregation.encoder.receiver import EncoderBootstrapServer

    urls: list[str] = ["http://10.9.9.9:1"]
    port = free_port()
    EncoderBootstrapServer("127.0.0.1", port, urls, health_check_interval=0)
    policies = {role: make_policy("random", PolicyConfig()) for role in Role}
    spec = WorkerSpec(f"http://127.0.0.1:{port}", Role.PREFILL, encoder_port=port)
    client = HttpClient()
    sync: Any = EncoderSync(Registry(policies, RegistryConfig()).add(spec, 0.0), client)
    async with asyncio.timeout(20):
        while "http://e0:1" not in urls:
            await sync.sync(frozenset({"http://e0:1", "http://e1:1"}))
            await asyncio.sleep(0.1)
    assert urls == ["http://10.9.9.9:1", "http://e0:1", "http://e1:1"]
    await sync.sync(frozenset({"http://e1:1"}))
    assert urls == ["http://10.9.9.9:1", "http://e1:1"]
    await sync.sync(frozenset())
    assert urls == ["http://10.9.9.9:1"]
    await client.close()
