"""What does the router cost? Ours beside mini_lb, sglang-router and vllm-router over the same mock workers.

    python benchmark/router_overhead.py            the whole table, about ten minutes
    python benchmark/router_overhead.py --quick    one short repetition

Method: mock workers and load client in C share one core, the router under test has another to itself; CPU is read from
the process clocks of the router's processes; each repetition starts each router anew, in alternating order; every reply
is checked for status, content and number of events, and the workers count the legs. Figures are medians with the lowest
and highest repetition in brackets. Absolute figures move with the machine; the goals are ratios within one run. Where
others use the cores too, `--tries N` repeats what they disturbed, and the result tells how much they did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from overhead.bodies import SIZES, chat_body, write_bodies
from overhead.cells import DISTURBED, Bench, Cell, cells, measure_undisturbed
from overhead.mocks import Workers, build
from overhead.peers import PINS, peers_python, versions
from overhead.report import Results, goals_json, markdown
from overhead.targets import REPO, RunningRouter, Site, Target, targets


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    parser.add_argument("--repetitions", type=int, help="default 3, with --quick 1")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="only these routers (direct is always run)"
    )
    parser.add_argument(
        "--cells", nargs="*", default=[], metavar="TEXT", help="only cells whose name has one of these texts"
    )
    parser.add_argument("--peers-venv", type=Path, default=REPO / ".venv-peers", help="made when it is missing")
    parser.add_argument(
        "--tries", type=int, default=1, help="repeat a measurement that others disturbed, at most so often"
    )
    parser.add_argument("--base-port", type=int, default=22400)
    parser.add_argument(
        "--out", type=Path, help="JSON result; default benchmark/results/router_overhead.json, none with --quick"
    )
    return parser.parse_args()


def make_site(base_port: int) -> Site:
    """Ports and the two cores: the last ones this process may use, as interrupts tend to go to the first."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("two cores are needed: one for the router, one for client and workers")
    ports = [base_port + i for i in range(6)]
    return Site(ports[0], ports[1], (ports[2], ports[3]), (ports[4], ports[5]), usable[-1], usable[-2])


def idle_share(seconds: float = 2.0) -> list[float]:
    """Idle share of each core just before the run: others' work spoils the figures, so it is recorded."""
    return [cpu.idle / 100 for cpu in psutil.cpu_times_percent(seconds, percpu=True)]


def describe(peers: Path, site: Site, idle: list[float]) -> dict[str, Any]:
    """Commit, machine and versions, for the result file."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=REPO, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    found = versions(peers)
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), "?")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "uncommitted": git("status", "--porcelain", "--", "sgl_epd", "router").splitlines(),
        "machine": {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()},
        "cores_used": {"router": site.router_core, "load": site.load_core, "idle_before": idle},
        "python": platform.python_version(),
        "versions": {
            "ours": {name: version(name) for name in ("uvloop", "httptools", "msgspec", "xxhash")},
            "peers": {name: found[name] for name in (*PINS, "aiohttp", "fastapi", "uvicorn") if name in found},
        },
    }


def run_target(target: Target, todo: list[Cell], site: Site, build_dir: Path, tries: int) -> dict[str, dict[str, Any]]:
    """One repetition of one router: start it and the workers, take every cell, stop both. Cell name -> result."""
    workers = Workers(build_dir, list(site.prefill), list(site.decode), site.load_core)
    router = None
    taken: dict[str, dict[str, Any]] = {}
    try:
        if target.command is not None:
            log = build_dir / f"{target.name.split()[0]}.log"
            router = RunningRouter(target, site, log)
            router.wait_ready(site.router_port, chat_body(SIZES["2 KiB"]).replace(b"N" * 16, b"0" * 16))
        bench = Bench(target, router, workers, site, build_dir, write_bodies(build_dir / "bodies"))
        for cell in todo:
            taken[cell.name] = measure_undisturbed(cell, bench, tries)
            taken[cell.name]["router_rss_mb"] = router.rss_mb() if router else 0.0
            show(target, cell, taken[cell.name])
    finally:
        if router is not None:
            router.stop()
        workers.stop()
    return taken


def show(target: Target, cell: Cell, result: dict[str, Any]) -> None:
    events = f", {result['cpu_us_per_event']:6.1f} us/event" if cell.events else ""
    line = f"  {target.name:26s} {cell.name:12s} p50 {result['p50_ms']:9.3f} ms, {result['requests_per_s']:9.1f} req/s"
    trouble = f"  PROBLEM: {'; '.join(result['problems'])}" if result["problems"] else ""
    if result["foreign_share"] > DISTURBED:
        trouble += f"  (others used {result['foreign_share']:.0%} of a core)"
    print(f"{line}, CPU {result['cpu_ms']:8.3f} ms/req{events}{trouble}", flush=True)


def run(chosen: list[Target], todo: list[Cell], repetitions: int, site: Site, build_dir: Path, tries: int) -> Results:
    """All repetitions, every second one in reverse order."""
    results: Results = {target.name: {cell.name: [] for cell in todo} for target in chosen}
    for repetition in range(repetitions):
        print(f"repetition {repetition + 1} of {repetitions}", flush=True)
        for target in chosen if repetition % 2 == 0 else reversed(chosen):
            for name, result in run_target(target, todo, site, build_dir, tries).items():
                results[target.name][name].append(result)
    return results


def main() -> int:
    args = parse_args()
    build_dir = REPO / "build" / "router_overhead"
    build(build_dir)
    python = peers_python(args.peers_venv)
    site = make_site(args.base_port)
    chosen = [t for t in targets(python) if not args.only or t.name in ("direct", *args.only)]
    todo = [c for c in cells(args.quick) if not args.cells or any(text in c.name for text in args.cells)]
    idle = idle_share()
    if min(idle[site.router_core], idle[site.load_core]) < 0.9:
        print(f"warning: the cores are not idle ({idle}); figures will be off", file=sys.stderr)
    about = describe(python, site, idle)
    started = time.monotonic()
    results = run(chosen, todo, args.repetitions or (1 if args.quick else 3), site, build_dir, args.tries)
    about["duration_s"] = round(time.monotonic() - started)
    complete = not args.cells and not args.only
    table = markdown(results) if not args.cells and "sgl-epd" in results else ""
    print("\n" + table)
    out = args.out or (REPO / "benchmark" / "results" / "router_overhead.json" if complete and not args.quick else None)
    if out:
        found = goals_json(results) if table else []
        out.write_text(json.dumps({"about": about, "goals": found, "results": results}, indent=1) + "\n")
        out.with_suffix(".md").write_text(
            f"{about['date']}, commit {about['commit'][:12]}, {about['machine']['cpu']}\n\n{table}\n"
        )
        print(f"\nwritten to {out} and {out.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
