"""Pools: who is chosen, why nobody is, and that everything taken is given back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_fixtures import make_registry, spec

from sgl_epd.errors import BadRequestError, NotFoundError, UnavailableError
from sgl_epd_router.breaker import BreakerConfig, BreakerState
from sgl_epd_router.health import HealthConfig, Probe
from sgl_epd_router.lease import Lease
from sgl_epd_router.policies import POLICY_NAMES
from sgl_epd_router.registry import RegistryConfig
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import Outcome, Role, Source, WorkerSpec, normalize_url


def test_select_takes_a_lease_and_finish_gives_it_back_once() -> None:
    registry = make_registry()
    worker = registry.add(spec(1), 0.0)
    lease = registry.select(Role.PREFILL, RouteKey(prompt_tokens=10, patches=4), 0.0)
    assert lease.worker is worker
    assert worker.load.own == (1, 10, 4)
    lease.finish(Outcome.OK, 1.0)
    lease.finish(Outcome.FAILURE, 2.0)
    assert worker.load.own == (0, 0, 0)
    assert lease.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda r: None, "no decode worker is registered"),
        (lambda r: r.drain(r.add(spec(1, Role.DECODE), 0.0).id), "1 draining"),
        (lambda r: r.remove(r.add(spec(1, Role.DECODE), 0.0).id), "1 draining"),
        (lambda r: r.add(spec(1, Role.DECODE), 0.0).breaker.open(0.0), "1 with an open circuit breaker"),
        (lambda r: r.add(spec(1, Role.DECODE), 0.0).health.override(False, "", True), "1 unhealthy"),
    ],
)
def test_the_error_says_why_nobody_can(prepare: object, reason: str) -> None:
    registry = make_registry()
    registry.add(spec(9, Role.PREFILL), 0.0)
    prepare(registry)  # type: ignore[operator]
    with pytest.raises(UnavailableError, match=reason):
        registry.select(Role.DECODE, now=0.0)


def test_a_worker_that_is_half_as_fast_gets_half_as_much() -> None:
    registry = make_registry()
    slow, fast = registry.add(spec(1, cost=2.0), 0.0), registry.add(spec(2), 0.0)
    for _ in range(30):
        registry.select(Role.PREFILL, RouteKey(prompt_tokens=100), 0.0)
    assert (slow.load.own.requests, fast.load.own.requests) == (10, 20)


def test_excluded_workers_are_not_chosen_and_named_when_nobody_is_left() -> None:
    registry = make_registry()
    first, second = registry.add(spec(1), 0.0), registry.add(spec(2), 0.0)
    assert registry.select(Role.PREFILL, now=0.0, exclude=frozenset({first.id})).worker is second
    with pytest.raises(UnavailableError, match="2 already tried"):
        registry.select(Role.PREFILL, now=0.0, exclude=frozenset({first.id, second.id}))


def test_models_matter_only_when_the_pool_serves_several() -> None:
    registry = make_registry()
    a = registry.add(spec(1, model_id="a"), 0.0)
    assert registry.select(Role.PREFILL, RouteKey(model="alias"), 0.0).worker is a
    b = registry.add(spec(2, model_id="b"), 0.0)
    assert registry.select(Role.PREFILL, RouteKey(model="b"), 0.0).worker is b
    with pytest.raises(NotFoundError, match="'alias'; models here: a, b"):
        registry.select(Role.PREFILL, RouteKey(model="alias"), 0.0)


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ERROR, Outcome.BACKPRESSURE, Outcome.CANCELLED])
def test_only_the_workers_own_faults_open_its_breaker(outcome: Outcome) -> None:
    registry = make_registry()
    worker = registry.add(spec(1), 0.0)
    for _ in range(50):
        registry.select(Role.PREFILL, now=0.0).finish(outcome, 0.0)
    assert worker.breaker.state is BreakerState.CLOSED
    for _ in range(10):
        registry.select(Role.PREFILL, now=0.0).finish(Outcome.FAILURE, 0.0)
    assert worker.breaker.state is BreakerState.OPEN


def test_a_removed_worker_finishes_what_it_has_and_is_forgotten() -> None:
    registry = make_registry()
    worker = registry.add(spec(1), 0.0)
    lease = registry.select(Role.PREFILL, now=0.0)
    registry.remove(worker.id)
    assert registry.sweep(1.0) == []
    lease.finish(Outcome.OK, 2.0)
    assert registry.sweep(2.0) == [worker]
    with pytest.raises(NotFoundError):
        registry.get(worker.id)


def test_a_worker_that_returns_at_the_same_url_serves_again_with_a_clean_slate() -> None:
    registry = make_registry()
    worker = registry.add(spec(1), 0.0)
    held = registry.select(Role.PREFILL, now=0.0)
    worker.breaker.open(0.0)
    registry.remove(worker.id)
    before = worker.incarnation
    again = registry.add(spec(1, api_key="new"), 5.0)
    assert again is worker and again.api_key == "new"
    assert again.incarnation > before
    assert registry.sweep(6.0) == []
    assert registry.select(Role.PREFILL, now=6.0).worker is worker
    held.finish(Outcome.OK, 7.0)
    assert worker.load.own.requests == 1


def test_recovery_closes_the_breaker_and_forgets_cache_affinity() -> None:
    registry = make_registry(config=RegistryConfig(health=HealthConfig(failure_threshold=1, success_threshold=1)))
    worker = registry.add(spec(1), 0.0)
    registry.record_probe(worker, Probe.OK, 0.0)
    worker.breaker.open(1.0)
    before = worker.incarnation
    assert registry.record_probe(worker, Probe.UNREACHABLE, 2.0)
    assert registry.record_probe(worker, Probe.OK, 3.0)
    assert worker.breaker.state is BreakerState.CLOSED
    assert worker.incarnation > before


def test_self_registered_workers_live_by_their_heartbeat_and_others_do_not() -> None:
    registry = make_registry(config=RegistryConfig(health=HealthConfig(enabled=False), heartbeat_ttl_s=90.0))
    beating = registry.add(spec(1, source=Source.REGISTERED), 0.0)
    silent = registry.add(spec(2, source=Source.REGISTERED), 0.0)
    static = registry.add(spec(3, source=Source.API), 0.0)
    registry.heartbeat(beating.id, 80.0)
    assert registry.sweep(91.0) == [silent]
    assert registry.in_role(Role.PREFILL) == (beating, static)


def test_a_flag_worker_that_also_registers_itself_is_not_lost_with_its_heartbeat() -> None:
    registry = make_registry()
    worker = registry.add(spec(1), 0.0)
    registry.add(spec(1, source=Source.REGISTERED), 1.0)
    assert registry.sweep(1e6) == []
    assert worker.spec.source is Source.FLAG


def test_slots_are_reused_only_after_the_worker_is_gone() -> None:
    registry = make_registry()
    first, second = registry.add(spec(1), 0.0), registry.add(spec(2), 0.0)
    registry.remove(first.id)
    registry.sweep(0.0)
    third = registry.add(spec(3), 0.0)
    assert (first.slot, second.slot, third.slot) == (0, 1, 0)


def test_every_change_is_announced() -> None:
    registry = make_registry(config=RegistryConfig(health=HealthConfig()))
    seen: list[int] = []
    registry.on_change.append(lambda: seen.append(len(registry.workers)))
    worker = registry.add(spec(1), 0.0)
    registry.record_probe(worker, Probe.UNREACHABLE, 0.0)
    registry.drain(worker.id)
    registry.remove(worker.id)
    registry.sweep(0.0)
    assert seen == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("10.0.0.1:30000", "http://10.0.0.1:30000"),
        ("http://Host:1/", "http://host:1"),
        ("https://h", "https://h:443"),
        ("http://[::1]:5/epd/", "http://[::1]:5/epd"),
    ],
)
def test_urls_are_normalised(given_url: str, url: str) -> None:
    assert normalize_url(given_url) == url


@pytest.mark.parametrize("url", ["", "ftp://h:1", "http://u:p@h:1", "http://h:1?x=1", "http://h:99999", "http://"])
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(BadRequestError):
        normalize_url(url)


def test_keys_do_not_show_in_a_specs_repr() -> None:
    assert "sesame" not in repr(WorkerSpec("h:1", api_key="sesame"))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "drain", "select", "finish", "probe", "tick", "sweep"]),
        st.integers(0, 5),
        st.sampled_from(list(Outcome)),
    ),
    max_size=120,
)


@settings(max_examples=60)
@given(EVENTS, st.sampled_from(POLICY_NAMES))
def test_no_policy_ever_chooses_a_worker_that_may_not_serve_and_counters_return_to_zero(
    events: list[tuple[str, int, Outcome]], policy: str
) -> None:
    config = RegistryConfig(
        breaker=BreakerConfig(failure_threshold=2, success_threshold=1, timeout_s=5.0),
        health=HealthConfig(failure_threshold=1, success_threshold=1),
    )
    registry = make_registry(policy, config)
    flying: list[Lease] = []
    now = 0.0
    for kind, number, outcome in events:
        known = registry.workers.get(spec(number).id)
        if kind == "add":
            registry.add(spec(number), now)
        elif kind == "remove" and known:
            registry.remove(known.id)
        elif kind == "drain" and known and not known.removing:
            registry.drain(known.id, number % 2 == 0)
        elif kind == "probe" and known:
            registry.record_probe(known, Probe.OK if outcome is Outcome.OK else Probe.UNREACHABLE, now)
        elif kind == "tick":
            now += number
        elif kind == "sweep":
            registry.sweep(now)
        elif kind == "finish" and flying:
            flying.pop(number % len(flying)).finish(outcome, now)
        elif kind == "select":
            able = {w.id for w in registry.workers.values() if w.healthy and not w.draining and w.breaker.allows(now)}
            try:
                lease = registry.select(Role.PREFILL, RouteKey(text=b"x" * 100 * number, prompt_tokens=number), now)
            except UnavailableError:
                assert not able
            else:
                assert lease.worker.id in able
                flying.append(lease)
    workers = {lease.worker for lease in flying} | set(registry.workers.values())
    for lease in flying:
        lease.finish(Outcome.OK, now)
    assert all(worker.load.own == (0, 0, 0) for worker in workers)
