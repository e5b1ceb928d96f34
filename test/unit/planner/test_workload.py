"""Traffic: the same for the same seed, independent of the rate, with the means asked for, and never stored."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import BadRequestError, ConfigError
from sgl_epd.planner import datafile
from sgl_epd.planner.arrivals import Arrivals, AtOnce, Gamma, OnOff, Poisson, Regular
from sgl_epd.planner.distributions import (
    Bounded,
    Choice,
    Constant,
    Distribution,
    LogNormal,
    Uniform,
    parse_distribution,
)
from sgl_epd.planner.models import load_model
from sgl_epd.planner.workload import Content, MediaSource, Phase, Request, Reuse, Stream, Workload
from sgl_epd.planner.workloads import load_workload, workload_names
from sgl_epd.protocol.items import Modality


def take(workload: Workload, count: int, rate: float = 1.0, seed: int = 0) -> list[Request]:
    return list(workload.requests(rate, seed, count))


@pytest.mark.parametrize("name", workload_names())
def test_named_workloads(name: str) -> None:
    workload = load_workload(name)
    requests = take(workload, 300, rate=5.0, seed=3)
    assert requests == take(workload, 300, rate=5.0, seed=3)
    assert requests != take(workload, 300, rate=5.0, seed=4) or name.startswith("offline")
    assert [request.number for request in requests] == list(range(len(requests)))
    assert all(earlier.at <= later.at for earlier, later in itertools.pairwise(requests))
    assert all(min(request.text_tokens, request.output_tokens) >= 1 for request in requests)


@pytest.mark.parametrize("name", workload_names())
def test_contents_do_not_depend_on_the_rate(name: str) -> None:
    workload = load_workload(name)

    def contents(rate: float) -> dict[str, list[Request]]:
        streams: dict[str, list[Request]] = {}
        for request in take(workload, 200, rate):
            streams.setdefault(request.stream, []).append(request._replace(at=0.0, number=0))
        return streams

    slow, fast = contents(0.1), contents(10.0)
    for stream in slow.keys() & fast.keys():
        assert all(a == b for a, b in zip(slow[stream], fast[stream], strict=False))


@pytest.mark.parametrize("name", [name for name in workload_names() if name != "role-switch"])
def test_workloads_survive_as_files(name: str, tmp_path: Path) -> None:
    datafile.write(tmp_path / "w.json", load_workload(name))
    assert take(load_workload(str(tmp_path / "w.json")), 50) == take(load_workload(name), 50)


def test_the_papers_workloads() -> None:
    six = take(load_workload("epd-synthetic-6"), 20)
    assert {(r.text_tokens, r.output_tokens, len(r.media), len(set(r.media))) for r in six} == {(22, 10, 6, 1)}
    assert {(r.media[0].width, r.media[0].height) for r in six} == {(4032, 3024)}
    assert len({r.media[0].content for r in six}) == 20, "one image many times, but another one in each request"
    outputs = [r.output_tokens for r in load_workload("role-switch").requests(3.0)]
    assert outputs == [50] * 10 + [500] * 90
    nextqa = take(load_workload("nextqa-8"), 4000)
    assert {r.text_tokens for r in nextqa} == set(range(4, 22))
    assert {r.output_tokens for r in nextqa} == set(range(1, 8))
    assert sum(r.text_tokens for r in nextqa) / 4000 == pytest.approx(11.42, rel=0.03)
    assert sum(r.output_tokens for r in nextqa) / 4000 == pytest.approx(2.75, rel=0.04)
    assert all(len(set(r.media)) == 8 for r in nextqa)


def test_numbers_in_names() -> None:
    assert len(take(load_workload("video-mme-24"), 1)[0].media) == 24
    for wrong in ("video-mme-0", "video-mme", "synthetic-2", "text-only-3"):
        with pytest.raises(ConfigError, match="unknown workload"):
            load_workload(wrong)


def test_shares_of_streams() -> None:
    counts = Counter(request.stream for request in take(load_workload("mixed"), 10_000))
    assert {name: count / 10_000 for name, count in counts.items()} == pytest.approx(
        {"text": 0.65, "images": 0.3, "videos": 0.05}, rel=0.1
    )


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    requests = load_workload("mixed").requests(10.0)
    for _ in itertools.islice(requests, 20_000):
        pass
    tracemalloc.start()
    try:
        for _ in itertools.islice(requests, 60_000):
            pass
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 400_000


# Arrivals


@pytest.mark.parametrize(("arrivals", "cv"), [(Poisson(), 1.0), (Gamma(0.5), 0.5), (Gamma(3.0), 3.0), (Regular(), 0.0)])
def test_rate_and_variation_of_gaps(arrivals: Arrivals, cv: float) -> None:
    times = list(itertools.islice(arrivals.times(8.0, random.Random(1)), 40_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert 1 / mean == pytest.approx(8.0, rel=0.04)
    assert spread / mean == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_bursts() -> None:
    """Six times the mean rate while on, a tenth of that while off; together the rate asked for."""
    arrivals = OnOff(on_s=10, off_s=50, quiet=0.1)
    times = list(itertools.islice(arrivals.times(20.0, random.Random(2)), 100_000))
    assert len(times) / times[-1] == pytest.approx(20.0, rel=0.08)
    counts = Counter(int(at) for at in times)
    busy = sum(1 for second in range(int(times[-1])) if counts[second] > 45)
    # While on: 20 / ((10 + 0.1 * 50) / 60) = 80 a second.
    assert busy / times[-1] == pytest.approx(10 / 60, rel=0.25)
    assert sum(count for count in counts.values() if count > 45) / len(times) == pytest.approx(2 / 3, rel=0.1)


def test_phases_stay_where_they_are_at_another_rate() -> None:
    arrivals = OnOff(on_s=5, off_s=5)

    def active(rate: float) -> set[int]:
        return {int(at) for at in itertools.takewhile(lambda at: at < 200, arrivals.times(rate, random.Random(3)))}

    assert len(active(50.0) - active(400.0)) == 0
    assert len(active(400.0) - active(50.0)) <= 20


def test_at_once() -> None:
    assert set(itertools.islice(AtOnce().times(1.0, random.Random(0)), 10)) == {0.0}


@given(st.sampled_from([Poisson(), Gamma(2.0), Regular()]), st.floats(0.1, 100), st.integers(0, 99))
def test_a_rate_only_stretches_time(arrivals: Arrivals, rate: float, seed: int) -> None:
    one = itertools.islice(arrivals.times(1.0, random.Random(seed)), 50)
    other = itertools.islice(arrivals.times(rate, random.Random(seed)), 50)
    assert [at / rate for at in one] == pytest.approx(list(other))


# Distributions


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("10", Constant(10.0)),
        ("constant:10", Constant(10.0)),
        ("uniform:4:21", Uniform(4, 21)),
        ("lognormal:300:0.8", LogNormal(300, 0.8)),
        ("lognormal:300:0.8:1:4096", LogNormal(300, 0.8, 1, 4096)),
        ("bounded:4:21:11.4", Bounded(4, 21, 11.4)),
        ("choice:1=0.7,2=0.3", Choice((1, 2), (0.7, 0.3))),
        ("choice:1,2,5", Choice((1, 2, 5))),
    ],
)
def test_distributions_as_text(text: str, distribution: Distribution) -> None:
    assert parse_distribution(text) == distribution
    rng = random.Random(5)
    drawn = [distribution.draw(rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(distribution.mean, rel=0.03)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "uniform:4",
        "uniform:9:4",
        "poisson:3",
        "lognormal:-1:1",
        "constant:1:2",
        "choice:",
        "choice:1=0",
        "choice:1=0.5,2",
        "bounded:1:2:3",
    ],
)
def test_wrong_distributions(text: str) -> None:
    with pytest.raises(ConfigError, match="is no distribution"):
        parse_distribution(text)


@given(st.floats(0, 100), st.floats(0.1, 100), st.floats(0.05, 0.95), st.integers(0, 10))
def test_bounded_stays_inside(low: float, width: float, share: float, seed: int) -> None:
    distribution = Bounded(low, low + width, low + share * width)
    rng = random.Random(seed)
    assert all(low <= distribution.draw(rng) <= low + width for _ in range(50))


# Items


def with_reuse(share: float, pool: int, exponent: float) -> Workload:
    media = MediaSource(width=Uniform(100, 2000), reuse=Reuse(share=share, pool=pool, exponent=exponent))
    content = Content(text_tokens=Constant(5), output_tokens=Constant(5), items=Constant(2), media=media)
    return Workload(name="w", source="test", streams=(Stream(name="s", phases=(Phase(content=content),)),))


def test_popular_items_by_zipf() -> None:
    items = [item for request in take(with_reuse(0.5, 100, 1.0), 10_000) for item in request.media]
    popular = Counter(item.content for item in items if item.content < 0)
    assert len(popular) == 100
    assert sum(popular.values()) / len(items) == pytest.approx(0.5, rel=0.05)
    (_, first), (_, second) = popular.most_common(2)
    assert first / second == pytest.approx(2.0, rel=0.2)
    fresh = [item.content for item in items if item.content > 0]
    assert len(set(fresh)) == len(fresh)


def test_equal_content_is_equal_size_whatever_came_before() -> None:
    sizes: dict[int, tuple[int, int]] = {}
    for seed_share in (0.3, 0.9):
        for request in take(with_reuse(seed_share, 50, 0.8), 500):
            for item in request.media:
                if item.content < 0:
                    assert sizes.setdefault(item.content, (item.width, item.height)) == (item.width, item.height)
    assert len(set(sizes.values())) > 40


def test_streams_do_not_share_items() -> None:
    contents: dict[str, set[int]] = {}
    for request in take(load_workload("mixed"), 5000):
        contents.setdefault(request.stream, set()).update(item.content for item in request.media)
    assert not contents["images"] & contents["videos"]


def test_sizes_for_a_model() -> None:
    photo = take(load_workload("epd-synthetic-1"), 1)[0].media[0]
    assert photo.size(load_model("minicpm-v-2.6").media).embeddings == 640
    assert photo.megapixels == pytest.approx(12.19, abs=0.01)
    clip = take(load_workload("audio-24"), 1)[0].media[0]
    assert clip.modality is Modality.AUDIO
    assert clip.size(load_model("ultravox-v0.3").media)[:4] == (1, 500, 250_000, 63)
    for name, item in (("minicpm-v-2.6", clip), ("ultravox-v0.3", photo)):
        with pytest.raises(BadRequestError, match="takes no"):
            item.size(load_model(name).media)


# Wrong workloads


def test_a_rate_above_zero() -> None:
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="it must be above 0"):
            load_workload("mixed").requests(rate)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"streams": []}, "length >= 1"),
        ({"streams": [{"name": "s", "rate": 3}]}, "unknown field `rate`"),
        ({"streams": [{"name": "s", "phases": [], "share": 1}]}, "length >= 1"),
        ({"streams": [{"name": "s", "phases": [{"content": {}}]}]}, "missing required field `text_tokens`"),
    ],
)
def test_wrong_files(change: dict[str, object], sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_bytes(msgspec.json.encode({"name": "w", "source": "s", "streams": []} | change))
    with pytest.raises(ConfigError, match=sentence):
        load_workload(str(file))


def test_only_the_last_phase_may_be_endless() -> None:
    content = Content(text_tokens=Constant(1), output_tokens=Constant(1))
    with pytest.raises(ValueError, match="only the last phase"):
        Stream(name="s", phases=(Phase(content=content), Phase(content=content, requests=3)))
