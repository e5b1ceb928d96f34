"""`--workers 2`, for real: one port, one view of the load, and no request lost when a process dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from cluster import chat
from fakes import FakeWorker, Gate, Hang, KvFabric
from http_client import Link, request
from router_process import RouterProcess, router_process

FLAGS = ("--health-check-interval-secs", "0.2", "--shutdown-grace-period-secs", "10")


@contextlib.asynccontextmanager
async def two_processes(*flags: str, regular: int = 2) -> AsyncIterator[tuple[RouterProcess, list[FakeWorker]]]:
    """Two router processes over aggregated workers."""
    workers = [await FakeWorker("regular", name=f"regular-{i}").start() for i in range(regular)]
    try:
        urls = [worker.url for worker in workers]
        async with router_process("--workers", "2", *FLAGS, "--worker-urls", *urls, *flags) as router:
            await router.ready()
            await router.logged(b"with 2 processes")
            yield router, workers
    finally:
        for worker in workers:
            await worker.stop()


async def owners(router: RouterProcess, links: int = 24) -> list[int]:
    """The process that has accepted each of so many connections."""
    opened = [await Link.open(router.url) for _ in range(links)]
    ports = [link.writer.get_extra_info("sockname")[1] for link in opened]
    found: dict[int, int] = {}
    async with asyncio.timeout(10):
        while len(found) < links:
            for child in router.children():
                found |= {
                    c.raddr.port: child.pid for c in child.net_connections("tcp") if c.raddr and c.raddr.port in ports
                }
            await asyncio.sleep(0.02)
    for link in opened:
        await link.close()
    return list(found.values())


def metric(text: bytes, name: str) -> float:
    """Sum of the samples whose name and labels start with `name`."""
    lines = (line for line in text.decode().splitlines() if line.startswith("sgl_epd_router_" + name))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def test_both_processes_serve_and_every_view_is_the_same() -> None:
    async with two_processes() as (router, workers):
        assert len(set(await owners(router))) == 2
        replies = await asyncio.gather(
            *(router.request("POST", "/v1/chat/completions", chat(f"question {n}")) for n in range(60))
        )
        assert Counter(reply.status for reply in replies) == {200: 60}
        scrapes = [(await router.request("GET", "/metrics")).body for _ in range(6)]
        for text in scrapes:
            assert metric(text, 'requests_total{route="/v1/chat/completions"') == 60
            assert metric(text, "worker_requests_total") == 60
            assert metric(text, "worker_inflight") == 0
        assert sum(len(worker.requests) for worker in workers) == 60


async def test_the_metrics_port_shows_the_same_sum() -> None:
    async with two_processes("--prometheus-host", "127.0.0.1", "--prometheus-port", "22298") as (router, _):
        for number in range(10):
            await router.request("POST", "/v1/chat/completions", chat(f"q{number}"))
        reply = await request("http://127.0.0.1:22298", "GET", "/metrics")
        assert metric(reply.body, 'requests_total{route="/v1/chat/completions"') == 10


async def test_the_load_in_one_process_is_seen_by_the_other() -> None:
    """Least load over two workers, and every request held: an even split needs the view of both processes."""
    async with two_processes("--policy", "least_load", "--load-poll-interval-secs", "0") as (router, workers):
        links = [await Link.open(router.url) for _ in range(40)]
        gates = [Gate(after=1) for _ in range(80)]
        for number, gate in enumerate(gates):
            workers[number % 2].script(gate)
        for number, link in enumerate(links):
            await link.send("POST", "/v1/chat/completions", chat("same size", stream=True))
            while sum(len(worker.requests) for worker in workers) <= number:
                await asyncio.sleep(0.002)
            assert abs(len(workers[0].live) - len(workers[1].live)) <= 1
        for gate in gates:
            gate.release()
        for link in links:
            assert (await link.reply()).status == 200
            await link.close()


async def test_a_worker_added_at_one_process_serves_in_both() -> None:
    async with two_processes(regular=1) as (router, workers):
        extra = await FakeWorker("regular", name="extra").start()
        added = await router.request("POST", "/workers", {"url": extra.url})
        assert added.status == 202
        for _ in range(10):
            assert (await router.request("GET", added.json()["location"])).status == 200
        assert (await router.request("DELETE", f"/workers/{workers[0].url}")).status == 202
        for number in range(20):
            assert (await router.request("POST", "/v1/chat/completions", chat(f"q{number}"))).status == 200
        assert len(extra.requests) == 20
        missing = await router.request("DELETE", "/workers/none")
        assert (missing.status, missing.error["code"]) == (404, "WORKER_NOT_FOUND")
        await extra.stop()


async def test_draining_the_router_drains_every_process() -> None:
    async with two_processes() as (router, _):
        assert (await router.request("POST", "/drain")).json()["draining"] is True
        for _ in range(10):
            assert (await router.request("POST", "/v1/chat/completions", chat())).status == 503
            assert (await router.request("GET", "/readiness")).status == 503
        await router.request("DELETE", "/drain")
        for _ in range(10):
            assert (await router.request("POST", "/v1/chat/completions", chat())).status == 200


async def test_a_request_is_aborted_in_whichever_process_serves_it() -> None:
    async with two_processes(regular=1) as (router, workers):
        for number in range(6):
            async with await Link.open(router.url) as link:
                body = chat(f"q{number}", rid=f"mine-{number}", stream=True, max_tokens=256)
                workers[0].script(Hang(after=2))
                await link.send("POST", "/v1/chat/completions", body)
                leg = await workers[0].arrived(number + 1)
                assert (await router.request("POST", "/abort_request", {"rid": f"mine-{number}"})).status == 200
                await asyncio.wait_for(leg.ended.wait(), 5.0)
                assert leg.outcome in ("aborted", "disconnected")


async def test_a_killed_process_is_replaced_and_its_load_forgotten() -> None:
    async with two_processes("--max-concurrent-requests", "50") as (router, workers):
        opened = [await Link.open(router.url) for _ in range(20)]
        for number, link in enumerate(opened):
            workers[number % 2].script(Hang())
            await link.send("POST", "/v1/chat/completions", chat(f"q{number}", stream=True))
        while sum(len(worker.live) for worker in workers) < 20:
            await asyncio.sleep(0.01)
        assert metric((await router.request("GET", "/metrics")).body, "worker_inflight") == 20
        victim = router.children()[0]
        victim.send_signal(signal.SIGKILL)
        await router.logged(b"ended with code -9, starting it again")
        await router.logged(b"router process 0 is ready", 30.0)
        async with asyncio.timeout(10):
            while True:
                text = (await router.request("GET", "/metrics")).body
                alive = sum(len(worker.live) for worker in workers)
                if alive < 20 and metric(text, "worker_inflight") == metric(text, "requests_running") == alive:
                    break
                await asyncio.sleep(0.02)
        for link in opened:
            await link.close()
        replies = [await router.request("POST", "/v1/chat/completions", chat(f"later {n}")) for n in range(20)]
        assert {reply.status for reply in replies} == {200}
        assert victim.pid not in {child.pid for child in router.children()}


async def test_counters_do_not_fall_when_a_process_dies() -> None:
    async with two_processes() as (router, _):
        for number in range(20):
            await router.request("POST", "/v1/chat/completions", chat(f"q{number}"))
        name = 'requests_total{route="/v1/chat/completions"'
        assert metric((await router.request("GET", "/metrics")).body, name) == 20
        router.children()[1].send_signal(signal.SIGKILL)
        await router.logged(b"starting it again")
        await router.ready()
        assert metric((await router.request("GET", "/metrics")).body, name) == 20


async def test_the_limit_of_concurrent_requests_holds_over_processes() -> None:
    flags = ("--max-concurrent-requests", "4", "--queue-size", "0")
    async with two_processes(*flags, regular=1) as (router, workers):
        opened = []
        for number in range(4):
            workers[0].script(Hang())
            opened.append(await Link.open(router.url))
            await opened[-1].send("POST", "/v1/chat/completions", chat(f"q{number}", stream=True))
            await workers[0].arrived(number + 1)
        statuses = {(await router.request("POST", "/v1/chat/completions", chat())).status for _ in range(10)}
        assert statuses == {429}
        for link in opened:
            await link.close()
        while workers[0].live:
            await asyncio.sleep(0.01)
        assert (await router.request("POST", "/v1/chat/completions", chat())).status == 200


async def test_the_rate_of_a_key_holds_over_processes() -> None:
    flags = ("--rate-limit-tokens-per-second", "0.01", "--rate-limit-burst", "5", "--api-key", "k", "j")
    async with two_processes(*flags) as (router, workers):
        for worker in workers:
            worker.api_key = "k"
        for key in ("k", "j"):
            statuses: Counter[int] = Counter()
            for _ in range(12):
                reply = await router.request("POST", "/v1/chat/completions", chat(), authorization=f"Bearer {key}")
                statuses[reply.status] += 1
            assert statuses == {200: 5, 429: 7}


async def test_sigterm_lets_running_requests_end_and_takes_no_new_ones() -> None:
    async with two_processes(regular=1) as (router, workers):
        gate = Gate()
        workers[0].script(gate)
        async with await Link.open(router.url) as link:
            await link.send("POST", "/v1/chat/completions", chat("last words", stream=True))
            await workers[0].arrived()
            ending = asyncio.create_task(router.end())
            await asyncio.sleep(0.5)
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await router.request("GET", "/liveness")
            assert not ending.done()
            gate.release()
            assert (await link.reply()).body.endswith(b"data: [DONE]\n\n")
        assert await ending == 0


async def test_when_the_control_process_is_killed_the_others_end_too() -> None:
    async with two_processes() as (router, _):
        family = router.children()
        router.process.kill()
        for child in family:
            await asyncio.to_thread(child.wait, 10)
        await router.process.wait()


async def test_a_port_that_is_taken_ends_it_with_a_sentence() -> None:
    async with two_processes() as (router, _):
        port = router.url.rpartition(":")[2]
        async with router_process("--workers", "2", "--port", port) as second:
            # The first router shares its port among its own processes only.
            assert await asyncio.wait_for(second.process.wait(), 20) == 2
            await second.logged(b"error: cannot listen on 127.0.0.1:" + port.encode())


async def test_a_pd_pair_over_two_processes() -> None:
    fabric = KvFabric()
    prefill, decode = await FakeWorker("prefill", fabric).start(), await FakeWorker("decode", fabric).start()
    flags = ["--pd-disaggregation", "--prefill", prefill.url, "8998", "--decode", decode.url]
    async with router_process("--workers", "2", *FLAGS, *flags) as router:
        await router.ready()
        replies = await asyncio.gather(
            *(router.request("POST", "/v1/chat/completions", chat(f"q{n}")) for n in range(40))
        )
        assert {reply.status for reply in replies} == {200}
        assert not fabric.collisions and not fabric.mismatches
    await prefill.stop()
    await decode.stop()
