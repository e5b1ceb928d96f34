"""Where the time of one request went, from the workers' own Prometheus histograms.

While nothing else runs, one request adds exactly one observation to each histogram, so the difference of a histogram's
sum before and after the request is that request's time, not an average. If a histogram counted anything but one
observation (a health check came in between), there is no answer, and the caller asks again with another request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families

BAR_WIDTH = 40


@dataclasses.dataclass(frozen=True)
class Series:
    """A histogram of SGLang 0.5.23: of which role, its name, and the label that it must carry."""

    role: str
    name: str
    label: tuple[str, str] | None = None


def _stage(role: str, stage: str) -> Series:
    return Series(role, "sglang:per_stage_req_latency_seconds", ("stage", stage))


_FIRST_TOKEN = Series("decode", "sglang:time_to_first_token_seconds")
_END_TO_END = Series("decode", "sglang:e2e_request_latency_seconds")
# In the order in which a request passes them; none overlaps the next.
_STAGES: tuple[tuple[str, tuple[Series, ...]], ...] = (
    ("encode: wait", (Series("encode", "sglang:encoder_queue_wait_seconds"),)),
    ("encode: preprocess", (Series("encode", "sglang:encoder_preprocess_seconds"),)),
    ("encode: forward", (Series("encode", "sglang:encoder_model_forward_seconds"),)),
    ("embedding transfer", (Series("encode", "sglang:encoder_transfer_seconds"),)),
    ("prefill: wait", (_stage("prefill", "prefill_bootstrap"), Series("prefill", "sglang:queue_time_seconds"))),
    ("prefill: forward", (_stage("prefill", "prefill_forward"),)),
    ("KV transfer", (_stage("prefill", "prefill_transfer_kv_cache"),)),
    ("decode: wait", (_stage("decode", "decode_waiting"), _stage("decode", "fake_output"))),
)
_DECODE = "decode: tokens"
OTHER = "between the stages"

Samples = Mapping[Series, tuple[float, float]]
"""Series -> (number of observations, their sum in seconds), over all workers of the role."""


def wanted() -> list[Series]:
    return [*(series for _, parts in _STAGES for series in parts), _FIRST_TOKEN, _END_TO_END]


def read(pages: Iterable[tuple[str, str]]) -> Samples:
    """Pages of `/metrics`, each with its worker's role -> what they say about the series that we need."""
    found = dict.fromkeys(wanted(), (0.0, 0.0))
    for role, text in pages:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                for series in found:
                    if series.role != role or not _matches(series, sample.name, sample.labels):
                        continue
                    count, total = found[series]
                    if sample.name.endswith("_count"):
                        found[series] = (count + sample.value, total)
                    else:
                        found[series] = (count, total + sample.value)
    return found


def _matches(series: Series, name: str, labels: Mapping[str, str]) -> bool:
    if name not in (series.name + "_count", series.name + "_sum"):
        return False
    return series.label is None or labels.get(series.label[0]) == series.label[1]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Seconds of each stage, in order; what is left of the client's total is `OTHER`."""

    total_s: float
    stages: tuple[tuple[str, float], ...]


def between(before: Samples, after: Samples, total_s: float) -> Timeline | None:
    """The timeline of the one request between two readings; None if they do not tell of exactly one."""
    spent: dict[Series, float] = {}
    for series in wanted():
        count, seconds = (new - old for new, old in zip(after[series], before[series], strict=True))
        if round(count) != 1:
            return None
        spent[series] = seconds
    stages = [(name, sum(spent[series] for series in parts)) for name, parts in _STAGES]
    stages.append((_DECODE, spent[_END_TO_END] - spent[_FIRST_TOKEN]))
    stages.append((OTHER, total_s - sum(seconds for _, seconds in stages)))
    return Timeline(total_s, tuple(stages))


def draw(timeline: Timeline, width: int = BAR_WIDTH) -> list[str]:
    """One line a stage; each bar begins where the one before it ends."""
    lines = []
    begun_s = 0.0
    for name, seconds in timeline.stages:
        # What lies between the stages has no place of its own.
        bar = "" if name == OTHER else _bar(begun_s, seconds, timeline.total_s, width)
        lines.append(f"{name:<20}{seconds * 1e3:8.1f} ms  {bar}".rstrip())
        begun_s += seconds
    return lines


def _bar(begun_s: float, seconds: float, total_s: float, width: int) -> str:
    if total_s <= 0 or seconds <= 0:
        return ""
    first = min(int(min(begun_s / total_s, 1.0) * width), width - 1)
    length = min(round(min(seconds / total_s, 1.0) * width), width - first)
    return " " * first + ("█" * length or "▏")
