"""The circuit breaker: opens on the worker's faults only, and always finds its way back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sgl_epd_router.breaker import Breaker, BreakerConfig, BreakerState

CONFIG = BreakerConfig(failure_threshold=3, success_threshold=2, timeout_s=10.0, window_s=60.0)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        breaker.record_failure(now)
    return breaker


def test_opens_after_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(CONFIG)
    breaker.record_failure(0.0)
    breaker.record_failure(0.0)
    assert breaker.allows(0.0)
    breaker.record_failure(0.0)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows(9.99)


def test_a_success_between_failures_restarts_the_row() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(20):
        breaker.record_failure(0.0)
        for _ in range(4):
            breaker.record_success(0.0)
    assert breaker.state is BreakerState.CLOSED


def test_half_of_all_calls_failing_opens_it_although_never_in_a_row() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        breaker.record_success(0.0)
        breaker.record_failure(1.0)
    assert breaker.state is BreakerState.OPEN


def test_failures_outside_the_window_do_not_add_up() -> None:
    breaker = Breaker(CONFIG)
    for step in range(10):
        breaker.record_failure(step * 40.0)
        breaker.record_success(step * 40.0)
    assert breaker.state is BreakerState.CLOSED


def test_half_open_admits_only_as_many_trials_as_must_succeed_then_closes() -> None:
    breaker = opened()
    assert breaker.allows(10.0)
    first, second = breaker.start(), breaker.start()
    assert not breaker.allows(10.0)
    breaker.record_success(10.5, first)
    assert breaker.state is BreakerState.HALF_OPEN
    breaker.record_success(10.6, second)
    assert breaker.state is BreakerState.CLOSED


def test_a_failed_trial_opens_it_for_a_whole_time_out_again() -> None:
    breaker = opened()
    assert breaker.allows(10.0)
    breaker.record_failure(11.0, breaker.start())
    assert not breaker.allows(20.9)
    assert breaker.allows(21.0)


def test_a_cancelled_trial_makes_room_for_another() -> None:
    breaker = opened()
    assert breaker.allows(10.0)
    trials = [breaker.start(), breaker.start()]
    assert not breaker.allows(10.0)
    breaker.record_neutral(trials[0])
    assert breaker.allows(10.0)


def test_requests_from_before_the_opening_neither_close_nor_reopen_it() -> None:
    breaker = Breaker(CONFIG)
    old = breaker.start()
    for _ in range(3):
        breaker.record_failure(0.0)
    assert breaker.allows(10.0)
    for _ in range(5):
        breaker.record_success(10.0, old)
        breaker.record_failure(10.0, old)
    assert breaker.state is BreakerState.HALF_OPEN


def test_a_trial_of_an_earlier_phase_does_not_count_in_a_later_one() -> None:
    breaker = opened()
    assert breaker.allows(10.0)
    early, failing = breaker.start(), breaker.start()
    breaker.record_failure(10.0, failing)
    assert breaker.allows(20.0)
    breaker.record_failure(20.0, early)
    assert breaker.state is BreakerState.HALF_OPEN
    assert [breaker.start() > 0, breaker.start() > 0, breaker.allows(20.0)] == [True, True, False]


def test_disabled_never_opens() -> None:
    breaker = Breaker(BreakerConfig(failure_threshold=1, enabled=False))
    for _ in range(100):
        breaker.record_failure(0.0)
    assert breaker.allows(0.0)


@given(st.lists(st.sampled_from(["success", "neutral"]), max_size=200))
def test_never_opens_without_a_failure(events: list[str]) -> None:
    breaker = Breaker(CONFIG)
    for event in events:
        trial = breaker.start()
        breaker.record_success(0.0, trial) if event == "success" else breaker.record_neutral(trial)
        assert breaker.allows(0.0)


class BreakerMachine(RuleBasedStateMachine):
    """Any interleaving of requests and time: trials stay bounded, and a worker that is well is back in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(CONFIG)
        self.now = 0.0
        self.flying: list[int] = []

    @rule(seconds=st.floats(0.1, 15.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def send(self) -> None:
        if self.breaker.allows(self.now):
            self.flying.append(self.breaker.start())

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), end=st.sampled_from(["success", "failure", "neutral"]))
    def end(self, data: st.DataObject, end: str) -> None:
        trial = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        if end == "success":
            self.breaker.record_success(self.now, trial)
        elif end == "failure":
            self.breaker.record_failure(self.now, trial)
        else:
            self.breaker.record_neutral(trial)

    @invariant()
    def open_means_no_requests(self) -> None:
        if self.breaker.state is BreakerState.OPEN and self.now < self.breaker.half_open_at:
            assert not self.breaker.allows(self.now)

    def teardown(self) -> None:
        for trial in self.flying:
            self.breaker.record_neutral(trial)
        for _ in range(2 * CONFIG.success_threshold):
            self.now += CONFIG.timeout_s
            if self.breaker.allows(self.now):
                self.breaker.record_success(self.now, self.breaker.start())
        assert self.breaker.state is BreakerState.CLOSED


TestBreakerMachine = BreakerMachine.TestCase
