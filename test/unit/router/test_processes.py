"""The shared view of several router processes: mirrors, outcomes, and a wire that carries data only."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest
from router_fixtures import make_registry, spec

from sgl_epd_router.args import parse_args
from sgl_epd_router.breaker import BreakerConfig, BreakerState
from sgl_epd_router.commands import AddWorker, DrainRouter, RemoveWorker, UpdateWorker, execute
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.health import HealthConfig, Probe
from sgl_epd_router.load import LoadReport
from sgl_epd_router.mirror import Mirror, OutcomeSender, apply_outcomes, pool_state
from sgl_epd_router.policies import PolicyConfig, make_policy
from sgl_epd_router.registry import Registry, RegistryConfig
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.wire import (
    Answer,
    Call,
    Link,
    Message,
    Metrics,
    Outcomes,
    PoolState,
    Ready,
    Stop,
    Welcome,
    WireError,
    WorkerOutcomes,
)
from sgl_epd_router.worker import Outcome, Role

CONFIG = RegistryConfig(
    breaker=BreakerConfig(failure_threshold=4, success_threshold=2, timeout_s=10.0),
    health=HealthConfig(failure_threshold=1, success_threshold=1),
)


class Processes:
    """A control process and two router processes on one board, without the sockets in between."""

    def __init__(self) -> None:
        self.buffer = bytearray(CounterBoard.size(2))
        self.control = self.registry(0)
        self.children = [self.registry(index) for index in range(2)]
        self.gone: list[str] = []
        self.mirrors = [Mirror(child, lambda worker: self.gone.append(worker.id)) for child in self.children]

    def registry(self, mine: int) -> Registry:
        policies = {role: make_policy("least_load", PolicyConfig()) for role in Role}
        return Registry(policies, CONFIG, CounterBoard(self.buffer, processes=2, mine=mine))

    def sync(self, now: float) -> None:
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(pool_state(self.control, False)), type=PoolState)
        for mirror in self.mirrors:
            mirror.apply(state, now)


@pytest.fixture
def three() -> Processes:
    processes = Processes()
    for port in (1, 2):
        processes.control.add(spec(port), 0.0)
    processes.sync(0.0)
    return processes


def test_every_process_balances_over_what_all_have_in_flight(three: Processes) -> None:
    leases = [three.children[i % 2].select(Role.PREFILL, RouteKey(prompt_tokens=100), 0.0) for i in range(8)]
    assert [w.load.own.requests for w in three.control.in_role(Role.PREFILL)] == [4, 4]
    for lease in leases:
        lease.finish(Outcome.OK, 1.0)
    assert [w.load.own for w in three.control.in_role(Role.PREFILL)] == [(0, 0, 0), (0, 0, 0)]


def test_health_drain_update_and_removal_reach_the_mirrors(three: Processes) -> None:
    first, second = three.control.in_role(Role.PREFILL)
    three.control.record_probe(first, Probe.UNREACHABLE, 1.0)
    three.control.drain(second.id)
    execute(three.control, UpdateWorker(second.id, {"api_key": "k2", "priority": 9}), 1.0)
    three.sync(1.0)
    for child in three.children:
        assert [child.get(w.id).state for w in (first, second)] == ["unhealthy", "draining"]
        assert (child.get(second.id).api_key, child.get(second.id).spec.priority) == ("k2", 9)
    three.control.remove(second.id)
    three.control.sweep(2.0)
    three.sync(2.0)
    assert list(three.children[0].workers) == [first.id]
    assert three.gone == [second.id, second.id]


def test_a_worker_with_a_running_request_elsewhere_is_not_forgotten(three: Processes) -> None:
    lease = three.children[1].select(Role.PREFILL, now=0.0)
    three.control.remove(lease.worker.id)
    assert three.control.sweep(1.0) == []
    three.sync(1.0)
    lease.finish(Outcome.OK, 2.0)
    assert [w.id for w in three.control.sweep(2.0)] == [lease.worker.id]


def test_reports_that_the_control_process_got_count_in_every_process(three: Processes) -> None:
    worker = three.control.in_role(Role.PREFILL)[0]
    worker.load.observe(LoadReport(requests=7, tokens=700), 5.0)
    three.sync(5.0)
    assert [child.get(worker.id).load.view(5.0)[0] for child in three.children] == [7, 7]


def test_failures_add_up_over_processes_and_open_the_breaker_in_all(three: Processes) -> None:
    worker = three.control.in_role(Role.PREFILL)[0]
    for _ in range(2):
        assert not apply_outcomes(three.control, Outcomes([WorkerOutcomes(worker.id, failed=1)]), 1.0)
    assert apply_outcomes(three.control, Outcomes([WorkerOutcomes(worker.id, failed=2)]), 1.0)
    three.sync(1.0)
    assert [child.get(worker.id).breaker.state for child in three.children] == [BreakerState.OPEN] * 2
    assert not three.children[0].get(worker.id).breaker.allows(10.9)
    assert three.children[0].get(worker.id).breaker.allows(11.0)


def test_trials_in_any_process_close_it_again_in_all(three: Processes) -> None:
    worker = three.control.in_role(Role.PREFILL)[0]
    worker.breaker.open(0.0)
    three.sync(0.0)
    apply_outcomes(three.control, Outcomes([WorkerOutcomes(worker.id, good_trials=1)]), 10.0)
    assert apply_outcomes(three.control, Outcomes([WorkerOutcomes(worker.id, good_trials=1)]), 10.5)
    three.sync(10.5)
    assert [child.get(worker.id).breaker.state for child in three.children] == [BreakerState.CLOSED] * 2


def test_a_failed_trial_opens_it_again(three: Processes) -> None:
    worker = three.control.in_role(Role.PREFILL)[0]
    worker.breaker.open(0.0)
    apply_outcomes(three.control, Outcomes([WorkerOutcomes(worker.id, failed_trials=1)]), 10.0)
    assert worker.breaker.state is BreakerState.OPEN
    assert worker.breaker.opened_at == 10.0


def test_a_breaker_that_a_process_opened_by_itself_survives_an_unrelated_change(three: Processes) -> None:
    mine = three.children[0].in_role(Role.PREFILL)[0]
    mine.breaker.open(1.0)
    three.control.add(spec(9), 1.0)
    three.sync(1.0)
    assert mine.breaker.state is BreakerState.OPEN


async def test_outcomes_are_sent_in_batches_and_failures_at_once() -> None:
    sent: list[Outcomes] = []
    registry = make_registry()
    sender = OutcomeSender(sent.append, asyncio.get_running_loop())
    registry.observe(sender)
    worker = registry.add(spec(1), 0.0)
    for _ in range(5):
        registry.select(Role.PREFILL, now=0.0).finish(Outcome.OK, 1.0)
    registry.select(Role.PREFILL, now=0.0).finish(Outcome.CANCELLED, 1.0)
    assert sent == []
    registry.select(Role.PREFILL, now=0.0).finish(Outcome.FAILURE, 2.0)
    await asyncio.sleep(0.01)
    assert sent == [Outcomes([WorkerOutcomes(worker.id, good=5, failed=1, seen_at=1.0)])]
    registry.select(Role.PREFILL, now=0.0).finish(Outcome.BACKPRESSURE, 3.0)
    await asyncio.sleep(0.1)
    assert [row.good for row in sent[1].workers] == [1]
    sender.close()


async def test_a_long_answer_is_reported_as_a_sign_of_life_while_it_runs() -> None:
    sent: list[Outcomes] = []
    registry = make_registry()
    sender = OutcomeSender(sent.append, asyncio.get_running_loop())
    registry.observe(sender)
    registry.add(spec(1), 0.0)
    lease = registry.select(Role.PREFILL, now=0.0)
    lease.touch(5.0)
    await asyncio.sleep(0.1)
    lease.touch(6.0)
    await asyncio.sleep(1.1)
    assert [row.seen_at for outcomes in sent for row in outcomes.workers] == [5.0, 6.0]
    sender.close()


def test_commands_change_the_pools_and_show_no_keys() -> None:
    registry = make_registry()
    shown = execute(registry, AddWorker(spec(1, api_key="sesame")), 0.0)
    assert (shown["worker_type"], shown["is_healthy"], shown["state"]) == ("prefill", True, "serving")
    assert "sesame" not in str(shown)
    execute(registry, RemoveWorker(shown["id"]), 1.0)
    assert registry.workers == {}


async def links() -> tuple[Link, Link, asyncio.StreamWriter]:
    ours, theirs = socket.socketpair()
    here = await asyncio.open_unix_connection(sock=ours)
    there = await asyncio.open_unix_connection(sock=theirs)
    return Link(*here), Link(*there), there[1]


MESSAGES: list[Message] = [
    Welcome(parse_args(["--pd-disaggregation", "--prefill", "http://p:1", "8998", "--api-key", "k"], {}), 1),
    pool_state(make_registry(), True),
    Ready(12),
    Stop(5.0),
    Call(3, AddWorker(spec(1, api_key="k", labels=(("zone", "a"),)))),
    Call(4, DrainRouter(False)),
    Answer(3, {"id": "x", "load": 1.5}),
    Answer(4, error=(404, "NotFoundError", "no", "WORKER_NOT_FOUND", None)),
    Metrics(1, [{"a": [(["x"], [1.0, 2.0])]}]),
]


async def test_every_message_arrives_as_it_was_sent() -> None:
    here, there, _ = await links()
    for message in MESSAGES:
        here.send(message)
        received: Any = await there.receive()
        if isinstance(message, Metrics):
            assert received.number == 1 and dict(received.snapshots[0])["a"][0][1] == [1.0, 2.0]
        else:
            assert received == message
    await here.close()
    assert await there.receive() is None
    await there.close()


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x02\xc1\xc1", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\x80"])
async def test_what_is_no_message_is_refused(data: bytes) -> None:
    here, there, raw = await links()
    raw.write(data)
    with pytest.raises(WireError):
        await here.receive()
    await here.close()
    await there.close()
