"""Metrics: what is recorded is what Prometheus reads, summed over processes; spans reach an exporter."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from router_fixtures import make_registry, spec

from sgl_epd_router.admission import AdmissionConfig, AdmissionQueue
from sgl_epd_router.metric_store import as_snapshot
from sgl_epd_router.metrics import RouterMetrics, render
from sgl_epd_router.registry import Registry
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.tracing import make_tracer
from sgl_epd_router.worker import Outcome, Role

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: bytes) -> Samples:
    return {
        (sample.name.removeprefix("sgl_epd_router_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def scrape(registry: Registry, *processes: RouterMetrics) -> Samples:
    snapshots = [as_snapshot(process.store.snapshot()) for process in processes]
    return read(render(processes[0], snapshots, registry, AdmissionQueue(AdmissionConfig()), now=100.0))


def test_leases_become_counts_and_durations_of_their_worker() -> None:
    registry, metrics = make_registry("cache_aware"), RouterMetrics(buckets=(0.1, 1.0))
    registry.observe(metrics)
    worker = registry.add(spec(1), 0.0)
    for now, outcome in ((0.0, Outcome.OK), (1.0, Outcome.FAILURE)):
        lease = registry.select(Role.PREFILL, RouteKey(text=b"the same prompt" * 20), now)
        lease.touch(now + 0.05)
        lease.finish(outcome, now + 0.5)
    samples = scrape(registry, metrics)
    where = {"role": "prefill", "worker": worker.id}
    assert value(samples, "worker_requests_total", **where, outcome="ok") == 1
    assert value(samples, "worker_requests_total", **where, outcome="failure") == 1
    assert value(samples, "worker_duration_seconds_bucket", **where, le="0.1") == 0
    assert value(samples, "worker_duration_seconds_bucket", **where, le="1.0") == 1
    assert value(samples, "worker_duration_seconds_sum", **where) == pytest.approx(0.5)
    assert value(samples, "worker_ttft_seconds_bucket", **where, le="0.1") == 1
    assert value(samples, "policy_choices_total", role="prefill", policy="cache_aware", reason="miss") == 1
    assert value(samples, "policy_choices_total", role="prefill", policy="cache_aware", reason="hit") == 1
    assert value(samples, "policy_cached_share_total", role="prefill") == 1


def test_the_state_of_the_pools_is_in_it() -> None:
    registry, metrics = make_registry(), RouterMetrics()
    worker, broken = registry.add(spec(1), 0.0), registry.add(spec(2), 0.0)
    broken.breaker.open(99.0)
    registry.select(Role.PREFILL, RouteKey(prompt_tokens=700), 99.0)
    samples = scrape(registry, metrics)
    assert value(samples, "worker_inflight", role="prefill", worker=worker.id) == 1
    assert value(samples, "worker_load_work", role="prefill", worker=worker.id) == 700
    assert value(samples, "worker_serving", role="prefill", worker=worker.id) == 1
    assert value(samples, "worker_breaker_state", role="prefill", worker=broken.id) == 2
    assert value(samples, "worker_serving", role="prefill", worker=broken.id) == 0
    assert value(samples, "requests_running") == 0


def test_processes_are_summed_bucket_by_bucket() -> None:
    here, there = RouterMetrics(buckets=(1.0,)), RouterMetrics(buckets=(1.0,))
    for metrics, seconds in ((here, 0.5), (there, 0.7), (there, 5.0)):
        metrics.requests.inc("/generate", "200")
        metrics.duration.observe(seconds, "/generate")
    samples = scrape(make_registry(), here, there)
    assert value(samples, "requests_total", route="/generate", status="200") == 3
    assert value(samples, "request_duration_seconds_bucket", route="/generate", le="1.0") == 2
    assert value(samples, "request_duration_seconds_bucket", route="/generate", le="+Inf") == 3
    assert value(samples, "request_duration_seconds_count", route="/generate") == 3
    assert value(samples, "request_duration_seconds_sum", route="/generate") == pytest.approx(6.2)


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    metrics = RouterMetrics(buckets=(1.0, 2.0))
    metrics.duration.observe(1.0, "/x")
    assert value(scrape(make_registry(), metrics), "request_duration_seconds_bucket", route="/x", le="1.0") == 1


def test_the_series_of_a_worker_that_is_gone_are_dropped() -> None:
    metrics = RouterMetrics()
    metrics.worker_requests.inc("prefill", "w1", "ok")
    metrics.worker_requests.inc("prefill", "w2", "ok")
    metrics.forget_worker("w1")
    assert list(metrics.worker_requests.values) == [("prefill", "w2", "ok")]


def test_spans_form_a_tree_that_continues_the_clients_and_is_carried_to_workers() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from sgl_epd_router.tracing import OtelTracer

    exporter = InMemorySpanExporter()
    tracer = OtelTracer("", exporter)
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    root = tracer.request("/generate", [(b"traceparent", f"00-{trace_id}-{parent_id}-01".encode())])
    leg = root.child("decode", {"worker": "w1"})
    carried = dict(leg.headers())[b"traceparent"].decode()
    leg.end(502, "the worker died")
    root.end(200)
    tracer.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert f"{spans['/generate'].context.trace_id:032x}" == trace_id
    assert f"{spans['/generate'].parent.span_id:016x}" == parent_id
    assert spans["decode"].parent.span_id == spans["/generate"].context.span_id
    assert carried == f"00-{trace_id}-{spans['decode'].context.span_id:016x}-01"
    assert not spans["decode"].status.is_ok and spans["/generate"].status.is_unset
    assert make_tracer(False, "") is None
