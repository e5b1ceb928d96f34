"""Which encoders each prefill worker may use: all are used, dead and swamped ones are not, changes stay small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_fixtures import View

from sgl_epd_router.encoder_lists import overloaded, plan

POLICIES = ["random", "round_robin", "power_of_two", "least_load", "consistent_hashing"]


def encoders(*requests: float) -> list[View]:
    return [View(f"e{i}", requests=load) for i, load in enumerate(requests)]


@pytest.mark.parametrize("policy", POLICIES)
@given(prefills=st.integers(1, 8), loads=st.lists(st.floats(0, 200), min_size=1, max_size=12))
def test_nobody_is_left_without_encoders_and_no_fit_encoder_without_work(
    policy: str, prefills: int, loads: list[float]
) -> None:
    pool = encoders(*loads)
    names = [f"p{i}" for i in range(prefills)]
    lists = plan(names, pool, policy)
    assert set(lists) == set(names)
    assert all(lists.values())
    used = set().union(*lists.values())
    assert used == {e.id for e in pool} - (set() if policy in ("random", "round_robin") else overloaded(pool))


@pytest.mark.parametrize("policy", POLICIES)
def test_without_encoders_the_lists_are_empty(policy: str) -> None:
    assert plan(["p0", "p1"], [], policy) == {"p0": frozenset(), "p1": frozenset()}


def test_hashing_gives_each_prefill_worker_its_own_few_but_at_least_two() -> None:
    pool = encoders(*[0.0] * 8)
    lists = plan([f"p{i}" for i in range(4)], pool, "consistent_hashing")
    assert min(len(chosen) for chosen in lists.values()) == 2
    assert sum(len(chosen) for chosen in lists.values()) < 8 * 4 / 2
    assert plan(["p0", "p1"], encoders(0, 0), "consistent_hashing")["p1"] == {"e0", "e1"}


@pytest.mark.parametrize("gone", range(6))
def test_when_an_encoder_leaves_other_places_in_the_lists_hardly_move(gone: int) -> None:
    pool, names = encoders(*[0.0] * 6), [f"p{i}" for i in range(3)]
    before = plan(names, pool, "consistent_hashing")
    after = plan(names, [e for i, e in enumerate(pool) if i != gone], "consistent_hashing")
    for name in names:
        assert len(before[name] - after[name] - {f"e{gone}"}) <= 1


def test_a_swamped_encoder_is_left_out_until_it_has_caught_up() -> None:
    assert overloaded(encoders(20, 0)) == {"e0"}
    assert overloaded(encoders(20, 15)) == frozenset()
    assert overloaded(encoders(3, 0)) == frozenset()
    assert overloaded(encoders(500)) == frozenset()
    assert plan(["p0"], encoders(20, 0), "least_load")["p0"] == {"e1"}
    assert plan(["p0"], encoders(20, 0), "random")["p0"] == {"e0", "e1"}
