"""Timelines from pages of metrics as SGLang 0.5.23 writes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.demo import timeline
from sgl_epd.demo.timeline import OTHER, Series, Timeline, between, draw, read, wanted

SECONDS = {
    "sglang:encoder_queue_wait_seconds": 0.001,
    "sglang:encoder_preprocess_seconds": 0.004,
    "sglang:encoder_model_forward_seconds": 0.005,
    "sglang:encoder_transfer_seconds": 0.002,
    "sglang:queue_time_seconds": 0.003,
    "sglang:time_to_first_token_seconds": 0.080,
    "sglang:e2e_request_latency_seconds": 0.100,
    "prefill_bootstrap": 0.001,
    "prefill_forward": 0.030,
    "prefill_transfer_kv_cache": 0.010,
    "decode_waiting": 0.001,
    "fake_output": 0.001,
}


def page(role: str, count: int) -> str:
    """The page of one worker after `count` equal requests, with series that must not be counted among them."""
    lines = []
    for series in wanted():
        if series.role != role:
            continue
        labels = f'model_name="m",{series.label[0]}="{series.label[1]}"' if series.label else 'model_name="m"'
        value = SECONDS[series.label[1] if series.label else series.name]
        if not any(line.endswith(f"{series.name} histogram") for line in lines):
            lines.append(f"# TYPE {series.name} histogram")
            if series.label:
                lines.append(f'{series.name}_count{{model_name="m",stage="of no interest"}} 77.0')
        lines += [
            f'{series.name}_bucket{{le="+Inf",{labels}}} {float(count)}',
            f"{series.name}_count{{{labels}}} {float(count)}",
            f"{series.name}_sum{{{labels}}} {count * value!r}",
        ]
    return "\n".join(lines) + "\n"


def pages(encode: int = 1, prefill: int = 1, decode: int = 1) -> list[tuple[str, str]]:
    return [
        ("encode", page("encode", encode)),
        ("prefill", page("prefill", prefill)),
        ("decode", page("decode", decode)),
    ]


def test_one_request_gives_its_own_times() -> None:
    line = between(read(pages(3, 3, 3)), read(pages(4, 4, 4)), 0.2)
    assert line is not None
    shown = {name: round(seconds, 6) for name, seconds in line.stages}
    assert shown == {
        "encode: wait": 0.001,
        "encode: preprocess": 0.004,
        "encode: forward": 0.005,
        "embedding transfer": 0.002,
        "prefill: wait": 0.004,
        "prefill: forward": 0.030,
        "KV transfer": 0.010,
        "decode: wait": 0.002,
        "decode: tokens": 0.020,
        OTHER: 0.122,
    }


def test_stages_add_up_to_what_the_client_saw() -> None:
    line = between(read(pages(0, 0, 0)), read(pages()), 0.5)
    assert line is not None
    assert round(sum(seconds for _, seconds in line.stages), 9) == 0.5


def test_no_timeline_when_another_request_came_in_between() -> None:
    before = read(pages(1, 1, 1))
    assert between(before, read(pages(2, 3, 2)), 1.0) is None
    assert between(before, read(pages(1, 2, 2)), 1.0) is None


def test_several_workers_of_a_role_are_added_up() -> None:
    two = [("encode", page("encode", 2)), ("encode", page("encode", 5))]
    assert read(two)[Series("encode", "sglang:encoder_queue_wait_seconds")] == (7.0, 0.007)


def test_a_role_without_the_series_counts_nothing() -> None:
    assert set(read([("encode", page("prefill", 1))]).values()) == {(0.0, 0.0)}


def test_each_bar_begins_where_the_one_before_ends() -> None:
    line = Timeline(1.0, (("a", 0.25), ("b", 0.5), ("c", 0.001), (OTHER, 0.249)))
    assert draw(line, width=8) == [
        "a                      250.0 ms  ██",
        "b                      500.0 ms    ████",
        "c                        1.0 ms        ▏",
        "between the stages     249.0 ms",
    ]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.floats(0, 30))
def test_bars_never_leave_the_chart(seconds: list[float], total_s: float) -> None:
    line = Timeline(total_s, tuple((f"stage {i}", value) for i, value in enumerate(seconds)))
    for text in draw(line):
        assert len(text.partition(" ms  ")[2]) <= timeline.BAR_WIDTH
