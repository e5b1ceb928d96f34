"""Health: dead workers go, busy ones stay, and those that return are noticed soon."""

from __future__ import annotations

from sgl_epd_router.health import HealthConfig, HealthState, Probe

CONFIG = HealthConfig(failure_threshold=3, success_threshold=2, timeout_s=5.0, interval_s=60.0)


def proven(now: float = 0.0) -> HealthState:
    state = HealthState(CONFIG, now)
    state.record_probe(Probe.OK, now)
    return state


def test_a_worker_down_at_start_is_out_after_one_probe_and_in_after_one() -> None:
    state = HealthState(CONFIG)
    assert state.record_probe(Probe.UNREACHABLE, 0.0)
    assert not state.healthy
    assert state.record_probe(Probe.OK, 1.0)
    assert state.healthy and state.proven


def test_a_served_worker_needs_the_thresholds() -> None:
    state = proven()
    assert [state.record_probe(Probe.UNREACHABLE, 100.0 + t) for t in range(3)] == [False, False, True]
    assert [state.record_probe(Probe.OK, 110.0 + t) for t in range(2)] == [False, True]


def test_a_good_probe_between_failures_starts_over() -> None:
    state = proven()
    for t in range(10):
        state.record_probe(Probe.BAD_STATUS, t)
        state.record_probe(Probe.BAD_STATUS, t)
        state.record_probe(Probe.OK, t)
    assert state.healthy


def test_slow_probes_do_not_evict_a_worker_whose_answers_arrive() -> None:
    state = proven()
    for t in range(100, 400, 5):
        state.seen_at = float(t)
        assert not state.record_probe(Probe.TIMEOUT, t + 5.0)
    assert state.healthy


def test_a_worker_that_hangs_is_out_after_the_grace() -> None:
    state = proven(0.0)
    now = 20.0
    while state.healthy and now < 300.0:
        state.record_probe(Probe.TIMEOUT, now)
        now += 5.0
    assert 30.0 < now <= 45.0


def test_a_refused_connection_counts_although_there_was_traffic_just_now() -> None:
    state = proven()
    for t in range(3):
        state.seen_at = float(t)
        state.record_probe(Probe.UNREACHABLE, t)
    assert not state.healthy
    assert state.reason == "health check: unreachable"


def test_a_failed_request_brings_the_next_probe_forward_but_not_more_than_once_a_second() -> None:
    state = proven(0.0)
    assert state.next_probe_at == 60.0
    state.suspect(10.0)
    assert state.next_probe_at == 10.0
    state.probing(10.0)
    state.record_probe(Probe.OK, 10.1)
    state.suspect(10.2)
    state.suspect(10.5)
    assert state.next_probe_at == 11.0


def test_failing_workers_are_probed_every_few_seconds() -> None:
    state = proven(0.0)
    delays = []
    for _ in range(14):
        state.record_probe(Probe.UNREACHABLE, 0.0)
        delays.append(state.next_probe_at)
    assert delays[:3] == [1.0, 1.5, 2.25]
    assert delays == sorted(delays)
    assert delays[-1] == 5.0


def test_switched_off_means_healthy_and_proven() -> None:
    state = HealthState(HealthConfig(enabled=False))
    assert state.healthy and state.proven
