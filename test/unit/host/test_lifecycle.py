"""The restart policy and the state machine, alone: no process, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sgl_epd.errors import ConfigError
from sgl_epd.host.lifecycle import Action, Lifecycle, RestartPolicy, State

POLICY = RestartPolicy(
    startup_timeout_s=100.0,
    unhealthy_after_s=30.0,
    initial_backoff_s=1.0,
    max_backoff_s=10.0,
    stable_after_s=60.0,
    max_quick_deaths=4,
)


def ready_at(now: float) -> Lifecycle:
    life = Lifecycle(POLICY, now)
    life.probed(now, life.started(now), True)
    return life


def test_starts_at_once() -> None:
    life = Lifecycle(POLICY, 5.0)
    assert (life.state, life.decide(5.0)) == (State.WAITING, Action.START)


def test_backoff_doubles_up_to_the_limit() -> None:
    assert [POLICY.backoff_s(deaths) for deaths in (0, 1, 2, 3, 4, 5, 500)] == [1.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_quick_deaths_wait_longer_each_time_and_end_in_giving_up() -> None:
    life = Lifecycle(POLICY, 0.0)
    now, pauses = 0.0, []
    while life.state is not State.GIVEN_UP:
        life.started(now)
        life.exited(now)
        pauses.append(life.start_at - now)
        now = life.start_at
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert life.starts == POLICY.max_quick_deaths
    assert life.decide(now + 1e9) is Action.NONE


def test_a_stable_process_starts_the_count_anew() -> None:
    life = Lifecycle(POLICY, 0.0)
    for _ in range(3):
        life.started(life.start_at)
        life.exited(life.start_at)
    begun = life.start_at
    life.probed(begun, life.started(begun), True)
    life.exited(begun + 60.0)
    assert (life.quick_deaths, life.start_at) == (0, begun + 61.0)


def test_a_late_start_is_replaced() -> None:
    life = Lifecycle(POLICY, 0.0)
    life.started(0.0)
    assert life.decide(100.0) is Action.NONE
    assert life.decide(100.1) is Action.REPLACE
    life.exited(101.0)
    assert life.decide(101.5) is Action.NONE
    assert life.decide(102.0) is Action.START


def test_only_lasting_ill_health_is_replaced() -> None:
    life = ready_at(0.0)
    life.probed(10.0, 1, False)
    life.probed(35.0, 1, False)
    assert life.decide(40.0) is Action.NONE
    life.probed(39.0, 1, True)
    assert (life.state, life.decide(80.0)) == (State.READY, Action.NONE)
    life.probed(90.0, 1, False)
    assert life.decide(120.1) is Action.REPLACE


def test_a_late_probe_of_the_process_before_changes_nothing() -> None:
    life = ready_at(0.0)
    life.exited(1.0)
    assert life.started(2.0) == 2
    life.probed(3.0, 1, True)
    assert life.state is State.STARTING


@pytest.mark.parametrize(
    "wrong",
    [{"max_quick_deaths": 0}, {"initial_backoff_s": -1.0}, {"max_backoff_s": 0.5}, {"backoff_factor": 0.5}],
)
def test_wrong_policies_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RestartPolicy(**wrong)  # type: ignore[arg-type]


@given(st.integers(0, 10_000), st.floats(1.0, 5.0), st.floats(0.0, 100.0), st.floats(0.0, 1000.0))
def test_backoff_grows_and_stays_in_bounds(deaths: int, factor: float, first: float, more: float) -> None:
    policy = RestartPolicy(initial_backoff_s=first, max_backoff_s=first + more, backoff_factor=factor)
    pause = policy.backoff_s(deaths)
    assert first <= pause <= first + more
    assert policy.backoff_s(deaths + 1) >= pause


class LifecycleMachine(RuleBasedStateMachine):
    """A process that is started, answers, hangs and dies in any order, with a model of what must be remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.life = Lifecycle(POLICY, 0.0)
        self.running = False
        self.healthy_since: float | None = None
        self.quick = 0

    @rule(seconds=st.floats(0.0, 200.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.life.decide(self.now) is Action.START)
    @rule()
    def start(self) -> None:
        assert not self.running
        assert self.now >= self.life.start_at
        self.life.started(self.now)
        self.running, self.healthy_since = True, None

    @precondition(lambda self: self.life.starts > 0)
    @rule(ok=st.booleans(), late=st.integers(0, 1))
    def probe(self, ok: bool, late: int) -> None:
        before = self.life.state
        self.life.probed(self.now, self.life.starts - late, ok)
        if late or not self.running:
            assert self.life.state is before
        elif ok:
            assert self.life.state is State.READY
            self.healthy_since = self.now if self.healthy_since is None else self.healthy_since
        else:
            assert self.life.state is not State.READY

    @precondition(lambda self: self.running)
    @rule()
    def die(self) -> None:
        stable = self.healthy_since is not None and self.now - self.healthy_since >= POLICY.stable_after_s
        self.quick = 0 if stable else self.quick + 1
        state = self.life.exited(self.now)
        self.running = False
        assert (state is State.GIVEN_UP) == (self.quick >= POLICY.max_quick_deaths)
        assert POLICY.initial_backoff_s <= self.life.start_at - self.now <= POLICY.max_backoff_s or (
            state is State.GIVEN_UP
        )

    @precondition(lambda self: self.life.decide(self.now) is Action.REPLACE)
    @rule()
    def replace(self) -> None:
        assert self.running
        self.die()

    @invariant()
    def deciding_has_no_effect(self) -> None:
        assert self.life.decide(self.now) is self.life.decide(self.now)
        assert self.life.running == self.running
        assert self.life.quick_deaths == self.quick

    @invariant()
    def never_stuck(self) -> None:
        """Whatever happened: in the end it runs, will be started, or is given up on purpose."""
        later = self.life.decide(self.now + 1e6)
        if self.life.state in (State.READY, State.GIVEN_UP):
            assert later is Action.NONE
        elif self.running:
            assert later is Action.REPLACE
        else:
            assert later is Action.START


TestLifecycleMachine = LifecycleMachine.TestCase
