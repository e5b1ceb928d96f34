"""How many requests a second does the simulator get through on one core, and does its memory stay where it is?

    python benchmark/simulator_speed.py [--requests 20000] [--out FILE]

Eight devices, several shapes and workloads, at about 70 % load. CPU time of the process, best of three.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sgl_epd.planner.devices import load_device
from sgl_epd.planner.metrics import Metrics, Slo
from sgl_epd.planner.models import load_model
from sgl_epd.planner.roofline import resolve_cost_model
from sgl_epd.planner.simulator import Hardware, Simulation, fixed_cost, parse_cluster
from sgl_epd.planner.workloads import load_workload

CASES = (
    ("text-only", "8EPD", 100.0),
    ("text-only", "1E4P3D", 60.0),
    ("small-image", "2E3P3D", 80.0),
    ("mixed", "2E2P4D", 40.0),
    ("mixed", "8EPD", 60.0),
    ("image-reuse", "2E+6PD", 40.0),
    ("epd-synthetic-2", "4E3P1D", 1.0),
)


def seconds(workload: str, cluster: str, rate: float, requests: int) -> tuple[float, float]:
    """(CPU seconds, busiest device's load)."""
    hardware = Hardware(
        load_model("qwen2.5-vl-7b"),
        load_device("h100-80g"),
        fixed_cost({1: resolve_cost_model("qwen2.5-vl-7b@h100-80g")}),
    )
    simulation = Simulation(parse_cluster(cluster), hardware, Metrics(slo=Slo(2.0, 0.05)))
    begun = time.process_time()
    simulation.run(load_workload(workload).requests(rate, 0, requests))
    return time.process_time() - begun, max(simulation.utilisation().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/simulator_speed.json")
    flags = parser.parse_args()
    table = Table(title=f"{flags.requests} requests, one core")
    for column in ("workload", "cluster", "requests/s simulated", "busiest device", "real requests/s", "peak MiB"):
        table.add_column(column, justify="right")
    rows = []
    for workload, cluster, rate in CASES:
        runs = [seconds(workload, cluster, rate, flags.requests) for _ in range(3)]
        best, load = min(runs)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append(
            {
                "workload": workload,
                "cluster": cluster,
                "simulated_per_s": round(flags.requests / best),
                "peak_mib": peak,
            }
        )
        table.add_row(workload, cluster, f"{flags.requests / best:,.0f}", f"{load:.0%}", f"{rate:g}", f"{peak:.0f}")
    Console().print(table)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    flags.out.write_text(json.dumps({"commit": commit, "requests": flags.requests, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
