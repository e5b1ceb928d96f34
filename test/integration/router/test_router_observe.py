"""What the router tells about itself: traces that reach the workers, access lines without secrets, a metrics port."""

from __future__ import annotations

import logging

import pytest
from cluster import chat, cluster, make_config
from fakes import Status
from http_client import request

from sgl_epd_router.leg_spans import LegSpans
from sgl_epd_router.metrics_api import metrics_api, start_metrics_server
from sgl_epd_router.tracing import OtelTracer

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_trace_goes_from_the_client_through_both_legs() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    async with cluster(prefill=1, decode=1) as c:
        c.app.context.tracer = OtelTracer("", exporter)
        c.app.context.registry.observe(LegSpans())
        traceparent = f"00-{TRACE_ID}-{PARENT_ID}-01"
        reply = await c.request("POST", "/v1/chat/completions", chat(), traceparent=traceparent)
        assert reply.status == 200
        c.decode[0].script(Status(400))
        assert (await c.chat()).status == 400
        await c.quiet()
        carried = {
            worker.role: [value for name, value in worker.requests[0].request.headers if name == "traceparent"]
            for worker in c.workers
        }
    spans = {span.name: span for span in exporter.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE_ID}
    assert set(spans) == {"/v1/chat/completions", "prefill", "decode"}
    root = spans["/v1/chat/completions"]
    assert root.attributes["http.response.status_code"] == 200
    assert f"{root.parent.span_id:016x}" == PARENT_ID
    for role in ("prefill", "decode"):
        assert spans[role].parent.span_id == root.context.span_id
        assert carried[role] == [f"00-{TRACE_ID}-{spans[role].context.span_id:016x}-01"]
    failed = [span for span in exporter.get_finished_spans() if not span.status.is_ok and span.name == "decode"]
    assert [span.status.description for span in failed if span.status.description] == ["client_error"]


async def test_without_tracing_a_clients_trace_context_passes_untouched() -> None:
    async with cluster(regular=1) as c:
        traceparent = f"00-{TRACE_ID}-{PARENT_ID}-01"
        await c.request("POST", "/v1/chat/completions", chat(), traceparent=traceparent)
        assert c.regular[0].requests[0].request.header("traceparent") == traceparent


async def test_access_lines_have_no_query_key_or_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sgl_epd_router.access")
    async with cluster(regular=1, flags=["--access-log", "--api-key", "sesame", "--worker-api-key", "w"]) as c:
        c.regular[0].api_key = "w"
        key = {"authorization": "Bearer sesame", "x_request_id": "r-1"}
        body = chat("the secret question")
        assert (await c.request("POST", "/v1/chat/completions?token=sesame", body, **key)).status == 200
    (line,) = [r for r in caplog.records if r.name == "sgl_epd_router.access" and "chat" in r.getMessage()]
    assert line.getMessage().startswith("POST /v1/chat/completions 200 ")
    assert (line.status, line.request_id) == (200, "r-1")  # type: ignore[attr-defined]
    assert "sesame" not in caplog.text and "secret question" not in caplog.text


async def test_refusals_are_counted_by_their_reason() -> None:
    flags = ["--rate-limit-tokens-per-second", "0.01", "--rate-limit-burst", "1"]
    async with cluster(regular=1, flags=flags) as c:
        statuses = [(await c.chat()).status for _ in range(3)]
        assert statuses == [200, 429, 429]
        text = (await c.request("GET", "/metrics")).body.decode()
        assert 'sgl_epd_router_rejected_total{reason="rate_limit_exceeded"} 2.0' in text


async def test_the_metrics_port_serves_metrics_and_nothing_else() -> None:
    async with cluster(regular=1) as c:
        config = make_config("--prometheus-host", "127.0.0.1", "--prometheus-port", "22299")
        server = await start_metrics_server(config, metrics_api(c.app.context, c.app.attachment))
        assert server is not None
        await c.chat()
        reply = await request("http://127.0.0.1:22299", "GET", "/metrics")
        assert b'sgl_epd_router_requests_total{route="/v1/chat/completions",status="200"} 1.0' in reply.body
        for path in ("/workers", "/v1/models", "/"):
            assert (await request("http://127.0.0.1:22299", "GET", path)).status == 404
        await server.close()


async def test_without_keys_a_client_is_its_address_whatever_key_it_makes_up() -> None:
    flags = ["--rate-limit-tokens-per-second", "0.01", "--rate-limit-burst", "2"]
    async with cluster(regular=1, flags=flags) as c:
        replies = [
            await c.request("POST", "/v1/chat/completions", chat(), authorization=f"Bearer made-up-{number}")
            for number in range(4)
        ]
        assert [reply.status for reply in replies] == [200, 200, 429, 429]


async def test_embeddings_stand_in_the_same_queue() -> None:
    flags = ["--rate-limit-tokens-per-second", "0.01", "--rate-limit-burst", "2"]
    async with cluster(regular=1, flags=flags) as c:
        body = {"model": "m", "input": "text"}
        assert [(await c.request("POST", "/v1/embeddings", body)).status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("priority", [None, 3, -1])
async def test_a_priority_is_for_the_workers_too(priority: int | None) -> None:
    async with cluster(regular=1) as c:
        assert (await c.chat(priority=priority)).status == 200
        assert c.regular[0].requests[0].body["priority"] == priority
        assert (await c.chat(priority="high")).status == 400
