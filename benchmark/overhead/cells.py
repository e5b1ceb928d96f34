"""What is measured on each router: the cells of the result table, and how one of them is taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from overhead.bodies import SIZES
from overhead.mocks import Load, Workers, run_load
from overhead.targets import RunningRouter, Site, Target

STREAM_EVENTS = 64
PACED_GAP_US = 5000
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Cell:
    """One kind of traffic."""

    name: str
    body: str
    concurrency: int
    seconds: float
    min_requests: int
    events: int = 0
    gap_us: int = 0


def cells(quick: bool) -> list[Cell]:
    """All bodies at concurrency 1 and 32, streams of 64 events at once, and a paced stream."""
    length_s = 0.7 if quick else 2.5
    alone = {"1 MiB": 60, "10 MiB": 15}
    many = {"1 MiB": 96, "10 MiB": 64}
    result = []
    for body in SIZES:
        result.append(Cell(f"{body} c=1", body, 1, length_s, alone.get(body, 200)))
        result.append(Cell(f"{body} c=32", body, 32, length_s, many.get(body, 640)))
    result.append(Cell("SSE c=1", "stream", 1, length_s, 100, STREAM_EVENTS))
    result.append(Cell("SSE c=32", "stream", 32, length_s, 320, STREAM_EVENTS))
    result.append(Cell("paced c=32", "stream", 32, 2 * length_s, 96, STREAM_EVENTS, PACED_GAP_US))
    return result


def measure(
    cell: Cell, target: Target, router: RunningRouter | None, workers: Workers, site: Site, binaries: Path, body: Path
) -> dict[str, Any]:
    """Warm up, then take `cell` on `target`. Times in ms; `problems` lists what was not as it must be."""
    port = site.decode[0] if router is None else site.router_port
    workers.reset(cell.events or STREAM_EVENTS, cell.gap_us)
    warm = Load(PATH, body, cell.concurrency, min(0.3, cell.seconds), cell.concurrency, cell.events)
    run_load(binaries, port, warm, site.load_core)

    workers.reset(cell.events or STREAM_EVENTS, cell.gap_us)
    load = Load(PATH, body, cell.concurrency, cell.seconds, cell.min_requests, cell.events)
    cpu_before, core_before = router.cpu_s() if router else 0.0, core_seconds(site.router_core)
    result = run_load(binaries, port, load, site.load_core)
    cpu_s = (router.cpu_s() if router else 0.0) - cpu_before
    busy_s, total_s = (
        after - before for after, before in zip(core_seconds(site.router_core), core_before, strict=True)
    )
    result["foreign_share"] = round(max(0.0, busy_s - cpu_s) / total_s, 3) if router else 0.0
    stats = workers.stats()
    done = max(result["ok"], 1)
    result["requests_per_s"] = result["ok"] / result["elapsed_s"]
    result["cpu_ms"] = 1000 * cpu_s / done
    if cell.events:
        result["cpu_us_per_event"] = 1e6 * cpu_s / (done * cell.events)
    result["legs"] = {role: sums["legs"] for role, sums in stats.items()}
    result["connections"] = sum(sums["accepted"] for sums in stats.values())
    result["problems"] = problems(target, result, stats)
    return result


def core_seconds(core: int) -> tuple[float, float]:
    """(busy, total) of one core since boot."""
    times = psutil.cpu_times(percpu=True)[core]
    # Guest time is contained in user time.
    total = sum(times) - times.guest - times.guest_nice
    return total - times.idle - times.iowait, total


def problems(target: Target, result: dict[str, Any], stats: dict[str, dict[str, int]]) -> list[str]:
    """Failed requests, and a number of legs that differs from the number of requests."""
    found = [f"{result[kind]} {kind}" for kind in ("bad_status", "bad_body", "broken", "timeouts") if result[kind]]
    if result["bad_status"]:
        found[0] += f" (such as {result['worst_status']})"
    expected = {"decode": result["started"], "prefill": result["started"] if target.legs == 2 else 0}
    for role, want in expected.items():
        if stats[role]["legs"] != want:
            found.append(f"{stats[role]['legs']} {role} legs for {result['started']} requests")
        if stats[role]["bad"]:
            found.append(f"{stats[role]['bad']} {role} legs with a damaged body")
    return found
