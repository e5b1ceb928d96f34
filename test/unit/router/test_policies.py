"""The policies' promises: balance, affinity that survives joins and leaves, bounded load, nobody starved."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_fixtures import View, views

from sgl_epd.errors import ConfigError
from sgl_epd_router.policies import POLICY_NAMES, PolicyConfig, make_policy
from sgl_epd_router.policies.bucket import equal_work_limits
from sgl_epd_router.policies.cache_aware import PrefixTable, prefix_path
from sgl_epd_router.policies.consistent_hashing import rank
from sgl_epd_router.route_key import EMPTY_KEY, MediaKey, RouteKey

CONFIG = PolicyConfig(seed=7)


def text(number: int, length: int = 2000) -> bytes:
    return (b"%08d " % number) * (length // 9 + 1)


def image(number: int) -> MediaKey:
    return MediaKey(b"image-%010d" % number, patches=100, tokens=25)


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="least_load"):
        make_policy("fastest", CONFIG)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_pool_of_one_always_works(name: str) -> None:
    policy = make_policy(name, CONFIG)
    assert {policy.choose(views(1), RouteKey(text=text(i)), i).pick for i in range(20)} == {0}


@pytest.mark.parametrize("name", POLICY_NAMES)
@given(loads=st.lists(st.floats(0, 1e6), min_size=1, max_size=8), keys=st.lists(st.integers(0, 50), max_size=20))
def test_the_choice_is_always_in_range(name: str, loads: list[float], keys: list[int]) -> None:
    policy = make_policy(name, CONFIG)
    for now, number in enumerate(keys):
        key = RouteKey(text=text(number, number * 40), media=(image(number),) * (number % 3), prompt_tokens=number)
        choice = policy.choose(views(len(loads), loads), key, float(now))
        assert 0 <= choice.pick < len(loads)
        assert 0.0 <= choice.cached <= 1.0


def test_random_is_even() -> None:
    policy = make_policy("random", CONFIG)
    counts = Counter(policy.choose(views(4), EMPTY_KEY, 0.0).pick for _ in range(4000))
    assert all(850 < count < 1150 for count in counts.values())


def test_round_robin_gives_every_worker_its_turn_and_survives_a_change_of_size() -> None:
    policy = make_policy("round_robin", CONFIG)
    turns = [policy.choose(views(3), EMPTY_KEY, 0.0).pick for _ in range(9)]
    assert Counter(turns) == {0: 3, 1: 3, 2: 3}
    assert len({policy.choose(views(5), EMPTY_KEY, 0.0).pick for _ in range(5)}) == 5


@pytest.mark.parametrize("name", ["least_load", "cache_aware"])
def test_idle_workers_take_turns(name: str) -> None:
    policy = make_policy(name, CONFIG)
    assert {policy.choose(views(4), EMPTY_KEY, 0.0).pick for _ in range(4)} == {0, 1, 2, 3}


@given(loads=st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_least_load_takes_the_least(loads: list[float]) -> None:
    choice = make_policy("least_load", CONFIG).choose(views(len(loads), loads), EMPTY_KEY, 0.0)
    assert loads[choice.pick] == min(loads)


def test_power_of_two_never_takes_the_most_loaded_and_keeps_the_pool_even() -> None:
    policy = make_policy("power_of_two", CONFIG)
    pool = views(8, [float(i) for i in range(8)])
    assert all(policy.choose(pool, EMPTY_KEY, 0.0).pick != 7 for _ in range(500))
    pool = views(8)
    for _ in range(8000):
        pool[policy.choose(pool, EMPTY_KEY, 0.0).pick].work += 1
    assert max(w.work for w in pool) - min(w.work for w in pool) <= 6


# -- consistent hashing ----------------------------------------------------------------------------------------------


def placements(pool: list[View], keys: range) -> dict[int, str]:
    policy = make_policy("consistent_hashing", CONFIG)
    return {n: pool[policy.choose(pool, RouteKey(media=(image(n),), patches=100), 0.0).pick].id for n in keys}


def test_a_repeated_image_meets_its_encoder_on_every_replica() -> None:
    assert placements(views(5), range(200)) == placements(views(5), range(200))


@pytest.mark.parametrize("leaver", range(5))
def test_only_the_leavers_keys_move_and_a_joiner_takes_only_its_share(leaver: int) -> None:
    pool = views(5)
    rest = [worker for worker in pool if worker is not pool[leaver]]
    before, after = placements(pool, range(1000)), placements(rest, range(1000))
    moved = {n for n in before if before[n] != after[n]}
    assert moved == {n for n in before if before[n] == pool[leaver].id}
    assert 130 < len(moved) < 270


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=200),
    hot=st.integers(1, 10),
    count=st.integers(1, 8),
)
def test_bounded_load_holds_however_hot_a_key_is(sizes: list[int], hot: int, count: int) -> None:
    policy = make_policy("consistent_hashing", CONFIG)
    pool = views(count)
    for number, size in enumerate(sizes):
        pick = policy.choose(pool, RouteKey(media=(image(number % hot),), patches=size), 0.0).pick
        pool[pick].work += size
        total = sum(worker.work for worker in pool)
        assert pool[pick].work <= CONFIG.load_factor * total / count + size


def test_when_the_first_choice_is_full_the_next_in_rank_takes_over() -> None:
    pool = views(4)
    key = RouteKey(media=(image(3),), patches=10)
    order = sorted(pool, key=lambda w: rank(key.media[0].content_hash, w.id), reverse=True)
    order[0].work = 1000.0
    choice = make_policy("consistent_hashing", CONFIG).choose(pool, key, 0.0)
    assert pool[choice.pick] is order[1]
    assert choice.reason == "balance"


def test_a_clients_own_routing_key_wins_over_content() -> None:
    policy = make_policy("consistent_hashing", CONFIG)
    picks = {
        policy.choose(views(6), RouteKey(media=(image(n),), text=text(n), routing_key="session-1"), 0.0).pick
        for n in range(50)
    }
    assert len(picks) == 1


# -- cache aware -----------------------------------------------------------------------------------------------------


def test_a_prompt_returns_to_the_worker_that_saw_it() -> None:
    policy = make_policy("cache_aware", CONFIG)
    pool = views(4)
    first = {n: policy.choose(pool, RouteKey(text=text(n)), 0.0).pick for n in range(100)}
    for worker in pool:
        worker.work = 5.0 * worker.incarnation
    for number, pick in first.items():
        choice = policy.choose(pool, RouteKey(text=text(number)), 0.0)
        assert (choice.pick, choice.cached, choice.reason) == (pick, 1.0, "hit")


def test_a_growing_conversation_stays_where_it_began() -> None:
    policy = make_policy("cache_aware", CONFIG)
    pool = views(4)
    history = text(1, 3000)
    home = policy.choose(pool, RouteKey(text=history), 0.0).pick
    for turn in range(2, 12):
        pool[home].work += 10
        history += text(turn, 500)
        assert policy.choose(pool, RouteKey(text=history), 0.0).pick == home


def test_the_same_question_about_another_image_is_no_match() -> None:
    policy = make_policy("cache_aware", CONFIG)
    pool = views(2)

    def ask(number: int) -> RouteKey:
        return RouteKey(text=b"What is this? Answer briefly.", media=(MediaKey(b"%016d" % number, 5, tokens=900),))

    home = policy.choose(pool, ask(1), 0.0).pick
    pool[home].work = 1.0
    assert policy.choose(pool, ask(2), 0.0).pick != home
    assert policy.choose(pool, ask(1), 0.0) == (home, 1.0, "hit")


def test_an_image_at_another_place_in_the_prompt_is_another_prefix() -> None:
    key = RouteKey(text=text(1), media=(MediaKey(b"%016d" % 1, 100, tokens=10),))
    moved = RouteKey(text=text(1), media=(MediaKey(b"%016d" % 1, 101, tokens=10),))
    assert not {value for cut, value in prefix_path(key) if cut > 100} & {value for _, value in prefix_path(moved)}


def test_a_short_common_start_is_not_followed() -> None:
    policy = make_policy("cache_aware", CONFIG)
    pool = views(2)
    system = b"You are a helpful assistant. " * 10
    home = policy.choose(pool, RouteKey(text=system + text(1, 4000)), 0.0).pick
    pool[home].work = 1.0
    choice = policy.choose(pool, RouteKey(text=system + text(2, 4000)), 0.0)
    assert (choice.pick, choice.reason) == (1 - home, "miss")


def test_imbalance_beyond_both_thresholds_overrides_the_cache() -> None:
    policy = make_policy("cache_aware", CONFIG)
    pool = views(2)
    key = RouteKey(text=text(1))
    home = policy.choose(pool, key, 0.0).pick
    pool[home].requests = pool[home].work = 64.0
    assert policy.choose(pool, key, 0.0).pick == home
    pool[home].requests = pool[home].work = 65.0
    assert policy.choose(pool, key, 0.0) == (1 - home, 0.0, "balance")
    pool[1 - home].requests = pool[1 - home].work = 60.0
    pool[home].requests = pool[home].work = 125.0
    assert policy.choose(pool, key, 0.0).reason == "balance"
    pool[1 - home].requests = pool[1 - home].work = 200.0
    pool[home].requests = pool[home].work = 265.0
    assert policy.choose(pool, key, 0.0).reason == "hit"


def test_a_worker_that_was_restarted_holds_nothing() -> None:
    policy = make_policy("cache_aware", CONFIG)
    pool = views(3)
    home = policy.choose(pool, RouteKey(text=text(1)), 0.0).pick
    pool[home].incarnation = 99
    pool[home].work = 1.0
    assert policy.choose(pool, RouteKey(text=text(1)), 0.0).pick != home


def test_two_router_processes_place_a_new_prompt_alike_on_an_idle_pool() -> None:
    first, second = make_policy("cache_aware", CONFIG), make_policy("cache_aware", PolicyConfig(seed=3))
    for number in range(50):
        key = RouteKey(text=text(number))
        assert first.choose(views(5), key, 0.0).pick == second.choose(views(5), key, 0.0).pick


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.lists(st.integers(0, 6000), max_size=4))
def test_paths_agree_exactly_as_far_as_the_prompts_do(a: bytes, b: bytes, places: list[int]) -> None:
    media = tuple(MediaKey(b"%016d" % p, p, tokens=p % 7) for p in sorted(places))
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    first, second = prefix_path(RouteKey(text=a, media=media)), prefix_path(RouteKey(text=b, media=media))
    assert [cut for cut, _ in first] == sorted(cut for cut, _ in first)
    shared = {value for _, value in first} & {value for _, value in second}
    if a == b:
        assert first == second
    elif not media:
        assert all(cut <= common for cut, value in first if value in shared)
        assert all(value in shared for cut, value in first if cut <= common and cut in dict(second))


def test_the_table_is_bounded_and_keeps_what_is_used() -> None:
    table = PrefixTable(max_bytes=200_000)
    hot = prefix_path(RouteKey(text=text(0)))
    for number in range(1, 3000):
        table.insert(prefix_path(RouteKey(text=text(number))), 1)
        table.insert(hot, 2)
    assert len(table) < 200_000 / 64
    assert table.holders(hot[-1][1]) == (2,)
    assert table.holders(prefix_path(RouteKey(text=text(5)))[-1][1]) == ()


# -- bucket ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=300), st.integers(1, 8))
def test_limits_ascend_and_split_the_work(lengths: list[int], parts: int) -> None:
    limits = equal_work_limits(lengths, parts)
    assert len(limits) == parts - 1
    assert limits == sorted(limits)


def test_bucket_keeps_short_prompts_away_from_long_ones_and_shares_the_tokens() -> None:
    policy = make_policy("bucket", CONFIG)
    pool = views(2)
    tokens = [0, 0]
    for step in range(2000):
        length = 100 if step % 11 else 1000
        pick = policy.choose(pool, RouteKey(prompt_tokens=length), step * 0.01).pick
        if step >= 1000:
            tokens[pick] += length
            assert pick == (length == 1000)
    assert 0.8 < tokens[0] / tokens[1] < 1.25
