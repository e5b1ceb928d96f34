"""What the router tells Prometheus. Names start with `sgl_epd_router_` and do not change; seconds throughout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sgl_epd_router.admission import AdmissionQueue
from sgl_epd_router.breaker import BreakerState
from sgl_epd_router.lease import Lease
from sgl_epd_router.metric_store import MetricStore, Snapshot
from sgl_epd_router.registry import Registry
from sgl_epd_router.worker import Outcome, Worker

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_P = "sgl_epd_router_"
_BREAKER_VALUES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class RouterMetrics:
    """Counters and histograms of one process. Also a `LeaseObserver`: everything about workers comes from leases."""

    def __init__(self, buckets: Iterable[float] = ()) -> None:
        self.store = store = MetricStore()
        bounds = tuple(buckets) or DURATIONS
        self.requests = store.counter(_P + "requests", "Requests answered", "route", "status")
        self.duration = store.histogram(
            _P + "request_duration_seconds", "From a request's head to the end of its answer", "route", buckets=bounds
        )
        self.ttft = store.histogram(
            _P + "ttft_seconds", "From a request's head to the first byte of a streamed answer", "route", buckets=bounds
        )
        self.queue_wait = store.histogram(_P + "queue_wait_seconds", "Waiting for admission", buckets=bounds)
        self.rejected = store.counter(_P + "rejected", "Requests that the router itself refused or gave up", "reason")
        self.retries = store.counter(_P + "retries", "Requests sent again", "role", "reason")
        self.aborts = store.counter(_P + "aborts", "Legs ended early at a worker", "role", "reason")
        self.cancelled = store.counter(_P + "client_disconnects", "Requests whose client went away", "route")
        self.choices = store.counter(
            _P + "policy_choices", "Choices of a worker; 'hit' followed affinity", "role", "policy", "reason"
        )
        self.cached = store.counter(_P + "policy_cached_share", "Sum of the shares of prompts thought cached", "role")
        self.worker_requests = store.counter(
            _P + "worker_requests", "Requests that ended at a worker", "role", "worker", "outcome"
        )
        self.worker_duration = store.histogram(
            _P + "worker_duration_seconds", "A request's time at a worker", "role", "worker", buckets=bounds
        )
        self.worker_ttft = store.histogram(
            _P + "worker_ttft_seconds", "Until the worker's first byte", "role", "worker", buckets=bounds
        )

    def on_start(self, lease: Lease) -> None:
        role, choice = lease.worker.spec.role.value, lease.choice
        self.choices.inc(role, lease.policy, choice.reason or "plain")
        if choice.cached:
            self.cached.inc(role, by=choice.cached)

    def on_finish(self, lease: Lease, outcome: Outcome, now: float) -> None:
        worker = lease.worker
        role = worker.spec.role.value
        self.worker_requests.inc(role, worker.id, outcome.value)
        if outcome is Outcome.OK:
            self.worker_duration.observe(now - lease.started_at, role, worker.id)
            if lease.first_byte_at is not None:
                self.worker_ttft.observe(lease.first_byte_at - lease.started_at, role, worker.id)

    def forget_worker(self, worker_id: str) -> None:
        self.store.forget("worker", worker_id)


def render(
    metrics: RouterMetrics, snapshots: Iterable[Snapshot], registry: Registry, admission: AdmissionQueue, now: float
) -> bytes:
    """The text of `/metrics`: the sum over all processes, and the state of the pools."""
    collected = CollectorRegistry(auto_describe=False)
    families = [*metrics.store.families(snapshots), *state_families(registry, admission, now)]
    collected.register(_Fixed(families))
    return generate_latest(collected)


def state_families(registry: Registry, admission: AdmissionQueue, now: float) -> Iterator[Metric]:
    yield GaugeMetricFamily(_P + "requests_running", "Requests admitted and not yet answered", admission.running)
    yield GaugeMetricFamily(_P + "requests_waiting", "Requests waiting for admission", admission.waiting)
    gauges = {
        "worker_inflight": "Requests of this router at a worker",
        "worker_load_requests": "Requests at a worker, ours and others'",
        "worker_load_work": "Pending work at a worker: patches for encode, tokens for the rest",
        "worker_healthy": "1 if the worker passes its health checks",
        "worker_serving": "1 if the worker takes new requests",
        "worker_breaker_state": "0 closed, 1 half-open, 2 open",
    }
    families = {name: GaugeMetricFamily(_P + name, help, labels=("role", "worker")) for name, help in gauges.items()}
    for worker in registry.workers.values():
        for name, value in _worker_values(worker, now).items():
            families[name].add_metric((worker.role.value, worker.id), value)
    yield from families.values()


def _worker_values(worker: Worker, now: float) -> dict[str, float]:
    requests, work = worker.load.view(now)
    return {
        "worker_inflight": worker.load.own.requests,
        "worker_load_requests": requests,
        "worker_load_work": work,
        "worker_healthy": worker.health.healthy,
        "worker_serving": worker.health.healthy and not worker.draining and worker.breaker.allows(now),
        "worker_breaker_state": _BREAKER_VALUES[worker.breaker.state],
    }


class _Fixed(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
