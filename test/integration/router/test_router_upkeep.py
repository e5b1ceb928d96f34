"""What the router finds out by itself: who is alive, how loaded they are, and which encoders each prefill may use."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import msgspec
import zmq
from cluster import chat, cluster
from fakes import FakeWorker, Status
from test_router_control import settled, until

from sgl_epd_router.breaker import BreakerState
from sgl_epd_router.health import HealthConfig
from sgl_epd_router.worker import Role


async def test_a_router_starts_before_its_workers_and_finds_them() -> None:
    """Row 61 (sglang#3802): it must not refuse to start."""
    async with cluster(regular=2) as c:
        await c.regular[0].kill()
        await until(lambda: not c.router_worker(c.regular[0]).healthy)
        assert (await c.request("GET", "/readiness")).json()["healthy_workers"] == 1
        for number in range(6):
            assert (await c.chat(f"question {number}")).status == 200
        assert not c.regular[0].requests
        await c.regular[0].start()
        await until(lambda: c.router_worker(c.regular[0]).healthy)
        assert (await c.request("GET", "/readiness")).json()["healthy_workers"] == 2


async def test_nobody_alive_is_a_503_that_says_so_and_recovery_needs_no_restart() -> None:
    async with cluster(regular=1) as c:
        await settled(c)
        await c.regular[0].kill()
        worker = c.router_worker(c.regular[0])
        await until(lambda: not worker.healthy)
        refused = await c.chat()
        assert (refused.status, refused.header("retry-after")) == (503, "1")
        assert "1 unhealthy" in refused.error["message"]
        assert (await c.request("GET", "/readiness")).status == 503
        shown = (await c.request("GET", f"/workers/{worker.id}")).json()
        assert (shown["state"], shown["reason"]) == ("unhealthy", "health check: unreachable")
        await c.regular[0].start()
        await until(lambda: worker.healthy)
        assert (await c.chat()).status == 200


async def test_row_9_a_slow_health_check_does_not_evict_a_worker_whose_answers_come() -> None:
    """sglang#29296: /health hangs while the worker serves."""
    async with cluster(regular=1, flags=["--health-check-timeout-secs", "0.1"]) as c:
        await settled(c)
        worker = c.router_worker(c.regular[0])
        c.regular[0].health_gate = asyncio.Event()
        hung_at = len(c.regular[0].control)
        deadline = asyncio.get_running_loop().time() + 1.5
        while asyncio.get_running_loop().time() < deadline:
            assert (await c.chat()).status == 200
            assert worker.healthy
            await asyncio.sleep(0.05)
        probes = [r for r in c.regular[0].control[hung_at:] if r.path == "/health"]
        assert len(probes) > HealthConfig().failure_threshold
        c.regular[0].health_gate.set()


async def test_a_worker_that_hangs_altogether_is_taken_out() -> None:
    flags = ["--health-check-timeout-secs", "0.1", "--load-poll-interval-secs", "0"]
    async with cluster(regular=1, flags=flags) as c:
        await settled(c)
        c.regular[0].health_gate = asyncio.Event()
        worker = c.router_worker(c.regular[0])
        await until(lambda: not worker.healthy)
        assert worker.health.reason == "health check: timeout"
        c.regular[0].health_gate.set()
        await until(lambda: worker.healthy)


async def test_a_failing_worker_is_left_alone_and_tried_again() -> None:
    flags = ["--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "0.3", "--cb-success-threshold", "2"]
    async with cluster(regular=2, flags=[*flags, "--policy", "round_robin"]) as c:
        await settled(c)
        bad = c.router_worker(c.regular[0])
        failing = True
        c.regular[0].script(*[Status(500) for _ in range(40)], when=lambda _: failing)
        for number in range(12):
            assert (await c.chat(f"question {number}")).status == 200
            if bad.breaker.state is BreakerState.OPEN:
                break
        assert bad.breaker.state is BreakerState.OPEN
        failing = False
        failed = len(c.regular[0].requests)
        for number in range(4):
            assert (await c.chat(f"meanwhile {number}")).status == 200
        assert len(c.regular[0].requests) == failed
        await asyncio.sleep(0.35)
        for number in range(8):
            assert (await c.chat(f"later {number}")).status == 200
        assert bad.breaker.state is BreakerState.CLOSED
        assert len(c.regular[0].requests) > failed


async def test_load_that_others_put_on_a_worker_is_avoided() -> None:
    flags = ["--load-poll-interval-secs", "0.05", "--policy", "least_load"]
    async with cluster(regular=2, flags=flags) as c:
        c.regular[0].extra_load = {"num_running_reqs": 40, "num_total_tokens": 90000}
        await until(lambda: c.router_worker(c.regular[0]).load.view(asyncio.get_running_loop().time())[0] >= 40)
        for number in range(6):
            assert (await c.chat(f"question {number}")).status == 200
        assert not c.regular[0].requests
        shown = (await c.request("GET", f"/workers/{c.router_worker(c.regular[0]).id}")).json()
        assert (shown["load"], shown["last_report"]["tokens"]) == (40, 90000)


async def test_the_zmq_load_stream_is_followed_and_polling_then_stops() -> None:
    async with cluster(decode=1, prefill=1, start=False) as c, load_publisher() as (port, publish):
        info = c.decode[0].info["/server_info"](None)  # type: ignore[arg-type]
        info["kv_events"] = {"publisher": "zmq", "load_endpoint_port_base": port, "load_topic": "load", "dp_size": 1}
        c.decode[0].info["/server_info"] = lambda _: info
        await c.start_router("--load-poll-interval-secs", "0.05")
        worker = c.router_worker(c.decode[0])
        while worker.load.report is None or worker.load.report.requests != 9:
            publish(9, 4000)
            await asyncio.sleep(0.02)
        assert worker.load.view(asyncio.get_running_loop().time()) == (9, 4000 + 9 * 512)
        asked = sum(r.path.startswith("/v1/loads") for r in c.decode[0].control)
        assert asked >= 1
        for _ in range(10):
            publish(9, 4000)
            await asyncio.sleep(0.03)
        assert sum(r.path.startswith("/v1/loads") for r in c.decode[0].control) <= asked + 1


@contextlib.asynccontextmanager
async def load_publisher() -> AsyncIterator[tuple[int, Callable[[int, int], None]]]:
    """SGLang's load stream: its port, and a function that publishes (running requests, tokens)."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    sequence = itertools.count()

    def publish(running: int, tokens: int) -> None:
        stat = msgspec.msgpack.encode(["LoadStat", running, 0, tokens, 10**6, 0, 0, tokens])
        socket.send_multipart([b"load", next(sequence).to_bytes(8, "big"), stat])

    try:
        yield port, publish
    finally:
        socket.close(linger=0)
        context.term()


async def test_encoders_follow_their_health_in_every_prefill_workers_list() -> None:
    flags = ["--encode-policy", "least_load", "--encoder-sync-interval-secs", "0.1"]
    async with cluster(prefill=2, decode=1, encode=2, flags=flags) as c:
        both = {encoder.url for encoder in c.encode}
        for worker in c.prefill:
            await asyncio.wait_for(worker.encoders.becomes(both), 5.0)
        await c.encode[0].kill()
        for worker in c.prefill:
            await asyncio.wait_for(worker.encoders.becomes({c.encode[1].url}), 5.0)
        await c.encode[0].start()
        for worker in c.prefill:
            await asyncio.wait_for(worker.encoders.becomes(both), 5.0)
        c.prefill[0].encoders.urls.remove(c.encode[1].url)
        await asyncio.wait_for(c.prefill[0].encoders.becomes(both), 5.0)


async def test_encoders_that_a_prefill_worker_was_started_with_are_left_alone() -> None:
    flags = ["--encoder-sync-interval-secs", "0.1"]
    async with cluster(prefill=1, decode=1, encode=1, flags=flags, start=False) as c:
        c.prefill[0].encoders.urls.append("http://elsewhere:1")
        await c.start_router(*flags)
        await asyncio.wait_for(c.prefill[0].encoders.becomes({"http://elsewhere:1", c.encode[0].url}), 5.0)
        worker = c.router_worker(c.encode[0])
        assert (await c.request("DELETE", f"/workers/{worker.id}")).status == 202
        await asyncio.wait_for(c.prefill[0].encoders.becomes({"http://elsewhere:1"}), 5.0)


async def test_a_stock_encoders_load_is_read_from_its_counters_and_a_swamped_one_is_spared() -> None:
    flags = ["--load-poll-interval-secs", "0.05", "--encoder-sync-interval-secs", "0.1"]
    async with cluster(prefill=1, decode=1, encode=2, flags=flags) as c:
        await asyncio.wait_for(c.prefill[0].encoders.becomes({e.url for e in c.encode}), 5.0)
        c.encode[0].received = 30
        worker = c.router_worker(c.encode[0])
        await until(lambda: worker.load.view(asyncio.get_running_loop().time())[0] == 30)
        await asyncio.wait_for(c.prefill[0].encoders.becomes({c.encode[1].url}), 5.0)
        c.encode[0].finished = 30
        await asyncio.wait_for(c.prefill[0].encoders.becomes({e.url for e in c.encode}), 5.0)


async def test_a_prefill_workers_bootstrap_port_is_asked_for_when_nobody_named_it() -> None:
    async with cluster(decode=1) as c:
        late = FakeWorker("prefill", c.fabric, name="late")
        late.bootstrap_port = 7777
        await late.start()
        await c.request("POST", "/workers", {"url": late.url, "worker_type": "prefill"})
        await until(lambda: [w.bootstrap_port for w in c.app.registry.in_role(Role.PREFILL)] == [7777])
        reply = await c.request("POST", "/v1/chat/completions", chat())
        assert reply.status == 200
        assert late.requests[0].rooms[0][1] == 7777
        await c.quiet()
        await late.stop()
