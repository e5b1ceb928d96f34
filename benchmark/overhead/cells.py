"""What is measured on each router: the cells of the result table, and how one of them is taken."""

from __future__ import annotations

import resource
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
DISTURBED = 0.08
"""Share of a core used by others above which a measurement is worth repeating."""


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


@dataclass(frozen=True)
class Bench:
    """What a cell is measured on."""

    target: Target
    router: RunningRouter | None
    workers: Workers
    site: Site
    binaries: Path
    bodies: dict[str, Path]


def measure_undisturbed(cell: Cell, bench: Bench, tries: int) -> dict[str, Any]:
    """`measure`, again while others use the cores, at most `tries` times; the least disturbed one counts."""
    found: list[dict[str, Any]] = []
    while len(found) < tries and not any(r["foreign_share"] <= DISTURBED for r in found):
        found.append(measure(cell, bench))
    best = min(found, key=lambda r: float(r["foreign_share"]))
    return {**best, "tries": len(found)}


def measure(cell: Cell, bench: Bench) -> dict[str, Any]:
    """Warm up, then take `cell`. Times in ms; `problems` lists what was not as it must be."""
    site, router, workers = bench.site, bench.router, bench.workers
    port = site.decode[0] if router is None else site.router_port
    body = bench.bodies[cell.body]
    workers.reset(cell.events or STREAM_EVENTS, cell.gap_us)
    warm = Load(PATH, body, cell.concurrency, min(0.3, cell.seconds), cell.concurrency, cell.events)
    run_load(bench.binaries, port, warm, site.load_core)

    workers.reset(cell.events or STREAM_EVENTS, cell.gap_us)
    load = Load(PATH, body, cell.concurrency, cell.seconds, cell.min_requests, cell.events)
    before = Clocks.read(site, router, workers)
    result = run_load(bench.binaries, port, load, site.load_core)
    spent = Clocks.read(site, router, workers).since(before)
    stats = workers.stats()
    done = max(result["ok"], 1)
    result["requests_per_s"] = result["ok"] / result["elapsed_s"]
    result["cpu_ms"] = 1000 * spent.router_s / done
    if cell.events:
        result["cpu_us_per_event"] = 1e6 * spent.router_s / (done * cell.events)
    result["foreign_share"] = round(spent.foreign_share(with_router=router is not None), 3)
    result["legs"] = {role: sums["legs"] for role, sums in stats.items()}
    result["connections"] = sum(sums["accepted"] for sums in stats.values())
    result["problems"] = problems(bench.target, result, stats)
    return result


@dataclass(frozen=True)
class Clocks:
    """CPU seconds of ours and of everybody, on the two cores."""

    router_s: float
    load_s: float
    busy_s: tuple[float, float]
    total_s: tuple[float, float]
    """Both as (router's core, load's core)."""

    @classmethod
    def read(cls, site: Site, router: RunningRouter | None, workers: Workers) -> Clocks:
        cores = [core_seconds(site.router_core), core_seconds(site.load_core)]
        client = resource.getrusage(resource.RUSAGE_CHILDREN)
        load_s = client.ru_utime + client.ru_stime + workers.cpu_s()
        busy, total = zip(*cores, strict=True)
        return cls(router.cpu_s() if router else 0.0, load_s, (busy[0], busy[1]), (total[0], total[1]))

    def since(self, before: Clocks) -> Clocks:
        busy = (self.busy_s[0] - before.busy_s[0], self.busy_s[1] - before.busy_s[1])
        total = (self.total_s[0] - before.total_s[0], self.total_s[1] - before.total_s[1])
        return Clocks(self.router_s - before.router_s, self.load_s - before.load_s, busy, total)

    def foreign_share(self, *, with_router: bool) -> float:
        """Share of a core that others used; of the worse one of the two."""
        shares = [(self.busy_s[1] - self.load_s) / self.total_s[1]]
        if with_router:
            shares.append((self.busy_s[0] - self.router_s) / self.total_s[0])
        return max(0.0, *shares)


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
