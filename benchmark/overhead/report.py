"""From raw repetitions to medians, goals and a Markdown table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from overhead.bodies import SIZES

# target -> cell -> one result for each repetition
Results = dict[str, dict[str, list[dict[str, Any]]]]
OURS, MINI_LB, RUST = "sgl-epd", "mini_lb", ("sglang-router", "vllm-router")


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest over the repetitions."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 3) -> str:
        return f"{_short(self.median, digits)} ({_short(self.low, digits)}..{_short(self.high, digits)})"


def _short(value: float, digits: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def spread(values: Iterable[float]) -> Spread:
    taken = list(values)
    return Spread(median(taken), min(taken), max(taken))


@dataclass(frozen=True)
class Goal:
    """One line of the goals: a figure that must not pass `limit`."""

    what: str
    limit: float
    value: Spread
    unit: str

    @property
    def met(self) -> bool:
        return self.value.median <= self.limit


def metric(results: Results, target: str, cell: str, key: str) -> list[float]:
    return [float(r[key]) for r in results[target][cell]]


def added(results: Results, target: str, cell: str, key: str) -> list[float]:
    """What the router adds to a request that goes straight to a worker, repetition by repetition."""
    direct = metric(results, "direct", cell, key)
    return [mine - base for mine, base in zip(metric(results, target, cell, key), direct, strict=True)]


def _ratio(results: Results, cell: str, peers: Iterable[str]) -> list[float]:
    """Our CPU per request over the cheapest peer's, repetition by repetition."""
    ours = metric(results, OURS, cell, "cpu_ms")
    best = [min(values) for values in zip(*(metric(results, p, cell, "cpu_ms") for p in peers), strict=True)]
    return [mine / other for mine, other in zip(ours, best, strict=True)]


def goals(results: Results) -> list[Goal]:
    """The router's goals. Those that compare with a peer that was not run are left out."""
    found: list[Goal] = []
    rust = [peer for peer in RUST if peer in results]
    for c in ("c=1", "c=32"):
        if MINI_LB in results:
            values = _ratio(results, f"2 KiB {c}", [MINI_LB])
            found.append(Goal(f"CPU, 2 KiB, {c}, against mini_lb", 0.3, spread(values), "x"))
        for body, limit in (("2 KiB", 2.0), ("100 KiB", 1.0), ("1 MiB", 0.5), ("10 MiB", 0.4)) if rust else ():
            values = _ratio(results, f"{body} {c}", rust)
            found.append(Goal(f"CPU, {body}, {c}, against the better Rust router", limit, spread(values), "x"))
    per_event = spread(metric(results, OURS, "paced c=32", "cpu_us_per_event"))
    found.append(Goal("CPU per event of a paced stream", 60, per_event, "us"))
    ttft = spread(added(results, OURS, "SSE c=1", "ttft_p50_ms"))
    found.append(Goal("added TTFT p50, c=1", 1.0, ttft, "ms"))
    failures = float(_problem_count(results, OURS))
    found.append(Goal("cells with a failure", 0, Spread(failures, failures, failures), ""))
    return found


def _problem_count(results: Results, target: str) -> int:
    return sum(bool(r["problems"]) for repetitions in results[target].values() for r in repetitions)


def markdown(results: Results) -> str:
    """The tables, with lowest and highest value in brackets after each median."""
    lines = [
        "| body | router | added p50 ms, c=1 | added p99 ms, c=1 | req/s, c=32 | CPU ms/request, c=1 | c=32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for body in (*SIZES, "SSE"):
        lines += [_row(results, target, body) for target in results]
    lines += ["", "Streams with events 5 ms apart, 32 at once:", ""]
    lines += ["| router | CPU us/event | TTFT p50 ms | added TTFT p50 ms, c=1 |", "|---|---|---|---|"]
    lines += [_stream_row(results, target) for target in results]
    lines += ["", *_goal_lines(goals(results)), *_problem_lines(results)]
    return "\n".join(lines)


def _row(results: Results, target: str, body: str) -> str:
    one, many = f"{body} c=1", f"{body} c=32"
    direct = target == "direct"
    take: Callable[[str], list[float]] = (
        (lambda key: metric(results, target, one, key)) if direct else (lambda key: added(results, target, one, key))
    )
    cpu = [spread(metric(results, target, cell, "cpu_ms")).text() for cell in (one, many)]
    name = "direct (absolute)" if direct else target
    rate = spread(metric(results, target, many, "requests_per_s")).text()
    cells = [spread(take("p50_ms")).text(), spread(take("p99_ms")).text(), rate, *(["-", "-"] if direct else cpu)]
    return f"| {body} | {name} | " + " | ".join(cells) + " |"


def _stream_row(results: Results, target: str) -> str:
    direct = target == "direct"
    cpu = "-" if direct else spread(metric(results, target, "paced c=32", "cpu_us_per_event")).text()
    ttft = spread(metric(results, target, "paced c=32", "ttft_p50_ms")).text()
    alone = "-" if direct else spread(added(results, target, "SSE c=1", "ttft_p50_ms")).text()
    return f"| {target} | {cpu} | {ttft} | {alone} |"


def _goal_lines(found: list[Goal]) -> list[str]:
    lines = ["| goal | at most | measured | |", "|---|---|---|---|"]
    for goal in found:
        verdict = "met" if goal.met else "**missed**"
        lines.append(f"| {goal.what} | {goal.limit:g} {goal.unit} | {goal.value.text()} {goal.unit} | {verdict} |")
    return lines


def _problem_lines(results: Results) -> list[str]:
    lines = []
    for target, by_cell in results.items():
        for cell, repetitions in by_cell.items():
            seen = sorted({problem for r in repetitions for problem in r["problems"]})
            if seen:
                lines.append(f"- {target}, {cell}: {'; '.join(seen)}")
    return ["", "Failures:", "", *lines] if lines else []


def goals_json(results: Results) -> list[dict[str, Any]]:
    return [{**asdict(goal), "met": goal.met} for goal in goals(results)]
