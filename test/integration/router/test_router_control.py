"""The control routes over HTTP: workers come, change, drain and leave; who may do that; what is never shown."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import pytest
from cluster import Cluster, chat, cluster
from fakes import FakeEncoder, FakeWorker

from sgl_epd_router.worker import Role


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def settled(c: Cluster) -> None:
    """Wait until every worker has passed its first health check."""
    await until(lambda: all(w.health.proven for w in c.app.registry.workers.values()))


async def test_a_worker_is_added_seen_used_and_removed() -> None:
    async with cluster(regular=1) as c:
        extra = await FakeWorker("regular", name="extra").start()
        reply = await c.request("POST", "/workers", {"url": extra.url, "worker_type": "regular", "priority": 7})
        assert reply.status == 202
        location = reply.json()["location"]
        assert reply.header("location") == location
        await until(lambda: len(c.app.registry.in_role(Role.REGULAR)) == 2)
        shown = (await c.request("GET", location)).json()
        assert (shown["url"], shown["worker_type"], shown["priority"]) == (extra.url, "regular", 7)
        for number in range(8):
            assert (await c.chat(f"question {number} {'x' * 200}")).status == 200
        assert {r.outcome for r in extra.requests} == {"finished"}
        assert (await c.request("DELETE", location)).status == 202
        gone = await c.request("GET", location)
        assert (gone.status, gone.error["code"]) == (404, "WORKER_NOT_FOUND")
        before = len(extra.requests)
        for number in range(4):
            assert (await c.chat(f"later {number}")).status == 200
        assert len(extra.requests) == before
        await extra.stop()


async def test_the_list_has_the_gateways_shape() -> None:
    async with cluster(prefill=1, decode=2, encode=1) as c:
        await settled(c)
        listed = (await c.request("GET", "/workers")).json()
        assert listed["total"] == 4
        assert listed["stats"] == {"encode_count": 1, "prefill_count": 1, "decode_count": 2, "regular_count": 0}
        one = next(w for w in listed["workers"] if w["worker_type"] == "prefill")
        assert (one["is_healthy"], one["connection_mode"], one["bootstrap_port"]) == (True, "http", 8998)
        assert one["state"] == "serving"


async def test_removal_drains() -> None:
    async with cluster(regular=2) as c:
        await settled(c)
        busy = c.regular[0]
        record = c.router_worker(busy)
        record_other = c.router_worker(c.regular[1])
        record_other.draining = True
        async with await c.link() as link:
            await link.send("POST", "/v1/chat/completions", chat("slow", stream=True, max_tokens=256))
            await busy.arrived()
            record_other.draining = False
            assert (await c.request("DELETE", f"/workers/{record.id}")).status == 202
            assert (await c.chat("other")).status == 200
            assert len(busy.requests) == 1
            reply = await link.reply()
            assert reply.body.endswith(b"data: [DONE]\n\n")
        await until(lambda: record.id not in c.app.registry.workers)


async def test_drain_one_worker_and_take_it_back() -> None:
    async with cluster(regular=1) as c:
        await settled(c)
        worker = c.router_worker(c.regular[0])
        reply = await c.request("POST", f"/workers/{worker.id}/drain?timeout_secs=1")
        assert (reply.status, reply.json()["state"], reply.json()["inflight"]) == (200, "draining", 0)
        refused = await c.chat()
        assert refused.status == 503
        assert "1 draining" in refused.error["message"]
        assert (await c.request("DELETE", f"/workers/{worker.id}/drain")).json()["state"] == "serving"
        assert (await c.chat()).status == 200


async def test_drain_the_router() -> None:
    async with cluster(regular=1) as c:
        await settled(c)
        assert (await c.request("GET", "/readiness")).status == 200
        reply = await c.request("POST", "/drain?timeout_secs=1")
        assert reply.json() == {"draining": True, "running": 0, "waiting": 0}
        assert (await c.request("GET", "/readiness")).status == 503
        assert (await c.request("GET", "/liveness")).status == 200
        refused = await c.chat()
        assert (refused.status, refused.header("retry-after")) == (503, "5")
        assert (await c.request("DELETE", "/drain")).json()["draining"] is False
        assert (await c.chat()).status == 200


async def test_what_may_change_changes_in_place_and_the_rest_is_refused() -> None:
    async with cluster(regular=1, flags=["--worker-api-key", "old"]) as c:
        worker = c.router_worker(c.regular[0])
        c.regular[0].api_key = "new"
        reply = await c.request("PUT", f"/workers/{worker.id}", {"api_key": "new", "labels": {"zone": "a"}})
        assert reply.status == 202
        assert reply.json()["worker"]["labels"] == {"zone": "a"}
        await settled(c)
        assert (await c.chat()).status == 200
        for body in ({"url": "http://127.0.0.1:1"}, {"worker_type": "decode"}, {"priority": "high"}, []):
            assert (await c.request("PUT", f"/workers/{worker.id}", body)).status == 400


async def test_the_legacy_routes() -> None:
    async with cluster(regular=1) as c:
        extra = await FakeWorker("regular", name="extra").start()
        added = await c.request("POST", f"/add_worker?url={extra.url}")
        assert (added.status, added.body.decode()) == (200, f"Successfully added worker: {extra.url}")
        assert (await c.request("GET", "/list_workers")).json() == {"urls": [c.regular[0].url, extra.url]}
        removed = await c.request("POST", f"/remove_worker?url={extra.url}")
        assert (removed.status, removed.body.decode()) == (200, f"Successfully removed worker: {extra.url}")
        assert (await c.request("POST", "/remove_worker?url=http://127.0.0.1:1")).status == 404
        assert (await c.request("POST", "/add_worker")).status == 400
        await extra.stop()


async def test_a_worker_that_registers_itself_lives_by_its_heartbeat() -> None:
    async with cluster(regular=1, flags=["--disable-health-check", "--load-poll-interval-secs", "0"]) as c:
        body = {"url": "http://127.0.0.1:9", "worker_type": "decode", "heartbeat_ttl_secs": 0.3}
        location = (await c.request("POST", "/workers", body)).json()["location"]
        for _ in range(5):
            await asyncio.sleep(0.15)
            assert (await c.request("PUT", f"{location}/heartbeat")).status == 200
        await until(lambda: not c.app.registry.in_role(Role.DECODE))
        assert (await c.request("PUT", f"{location}/heartbeat")).status == 404


async def test_stock_encoders_register_here_as_at_a_prefill_worker() -> None:
    async with cluster(prefill=1, decode=1) as c:
        encoder = await FakeEncoder().start()
        reply = await c.request("POST", "/register_encoder_url", {"url": encoder.url})
        assert (reply.status, reply.body) == (200, b"OK")
        assert (await c.request("GET", "/list_encoder_urls")).json() == {"encoder_urls": [encoder.url]}
        await asyncio.wait_for(c.prefill[0].encoders.becomes({encoder.url}), 5.0)
        reply = await c.request("DELETE", "/unregister_encoder_url", {"url": encoder.url})
        assert (reply.status, reply.body) == (200, b"OK")
        assert (await c.request("GET", "/list_encoder_urls")).json() == {"encoder_urls": []}
        await asyncio.wait_for(c.prefill[0].encoders.becomes(set()), 5.0)
        for body in ({}, {"url": ""}, [1]):
            reply = await c.request("POST", "/register_encoder_url", body)
            assert (reply.status, reply.json()) == (400, {"error": "Missing or empty 'url' field"})
        await encoder.stop()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "ftp://h:1"}, "url"),
        ({"url": "http://h:1", "worker_type": "boss"}, "worker_type"),
        ({"url": "http://127.0.0.1:1", "bootstrap_port": 99999}, "bootstrap_port"),
        ({"worker_type": "decode"}, None),
        (b"{", None),
    ],
)
async def test_a_bad_registration_says_what_is_wrong(body: object, param: str | None) -> None:
    async with cluster(regular=1) as c:
        reply = await c.request("POST", "/workers", body)
        assert (reply.status, reply.error["param"]) == (400, param)
        assert reply.error["message"]


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254:80", "http://[::ffff:a9fe:a9fe]:80", "http://0.0.0.0:1", "http://8.8.8.8:80"]
)
async def test_row_78_addresses_that_are_no_workers_are_refused(url: str) -> None:
    async with cluster(regular=1) as c:
        for method, path, body in (
            ("POST", "/workers", {"url": url}),
            ("POST", f"/add_worker?url={url}", None),
            ("POST", "/register_encoder_url", {"url": url}),
        ):
            assert (await c.request(method, path, body)).status == 403
        assert len(c.app.registry.workers) == 1


CONTROL = [
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("DELETE", "/workers/x"),
    ("PUT", "/workers/x/heartbeat"),
    ("POST", "/add_worker?url=http://127.0.0.1:1"),
    ("POST", "/remove_worker?url=x"),
    ("GET", "/list_workers"),
    ("POST", "/register_encoder_url"),
    ("DELETE", "/unregister_encoder_url"),
    ("GET", "/list_encoder_urls"),
    ("POST", "/drain"),
    ("POST", "/flush_cache"),
    ("POST", "/abort_request"),
]


@pytest.mark.parametrize(("method", "path"), CONTROL)
async def test_control_routes_need_the_admin_key(method: str, path: str) -> None:
    flags = ["--api-key", "client", "--admin-api-key", "admin", "--worker-api-key", "w"]
    async with cluster(regular=1, flags=flags) as c:
        assert (await c.request(method, path)).status == 401
        assert (await c.request(method, path, authorization="Bearer wrong")).status == 401
        assert (await c.request(method, path, authorization="Bearer client")).status == 403
        assert (await c.request(method, path, authorization="Bearer admin")).status not in (401, 403)


async def test_a_stock_encoder_can_show_the_key_in_its_url() -> None:
    """`--encoder-register-urls http://any:KEY@router:30000`: `requests` turns that into Basic."""
    async with cluster(prefill=1, decode=1, flags=["--admin-api-key", "admin"]) as c:
        basic = "Basic " + base64.b64encode(b"any:admin").decode()
        body = {"url": "http://127.0.0.1:1"}
        assert (await c.request("POST", "/register_encoder_url", body, authorization=basic)).status == 200


async def test_worker_keys_are_used_but_never_shown() -> None:
    async with cluster(regular=1, flags=["--api-key", "client", "--worker-api-key", "sesame-w"]) as c:
        c.regular[0].api_key = "sesame-w"
        key = {"authorization": "Bearer client"}
        reply = await c.request("POST", "/v1/chat/completions", chat(), **key)
        assert reply.status == 200
        assert c.regular[0].requests[0].request.header("authorization") == "Bearer sesame-w"
        body = {"url": "http://127.0.0.1:1", "api_key": "sesame-x"}
        added = await c.request("POST", "/workers", body, **key)
        for path in ("/workers", added.json()["location"], "/metrics", "/server_info", "/list_workers"):
            assert b"sesame" not in (await c.request("GET", path, **key)).body
        assert b"sesame" not in added.body
