"""The simulator beside tables 1, 4, 5 and 6 of the EPD paper (arXiv 2501.05460v4).

    python benchmark/simulator_vs_paper.py [--seeds 5] [--out FILE]

The cost model was derived from tables 1 (DistServe), 4, and the times per token of tables 5 and 6 without queues
(docs/cost-models.md). What is predicted here: queues, transfers, table 1's other rows, goodput, latencies of table 6.
The paper's settings: 8 A100, MiniCPM-V 2.6, batch 1 unless it says otherwise, nothing deduplicated or cached, pixels
loaded by the worker itself, 100 requests.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from sgl_epd.planner.cost_model import load_cost_model
from sgl_epd.planner.devices import load_device
from sgl_epd.planner.goodput import goodput
from sgl_epd.planner.metrics import PAPER_SLOS, Metrics, Slo
from sgl_epd.planner.models import load_model
from sgl_epd.planner.simulator import ClusterPlan, Hardware, Simulation, fixed_cost, parse_cluster
from sgl_epd.planner.workloads import load_workload
from sgl_epd.scheduler.decode import DecodeSchedulerConfig
from sgl_epd.scheduler.encode import EncodeSchedulerConfig
from sgl_epd.scheduler.prefill import PrefillSchedulerConfig

MODEL = "minicpm-v-2.6"
HARDWARE = Hardware(
    load_model(MODEL), load_device("a100-80g"), fixed_cost({1: load_cost_model(f"{MODEL}@a100-80g+vllm-0.6.1")})
)
REQUESTS = 100


def plan(
    cluster: str,
    *,
    encode: int = 1,
    prefill: int = 1,
    decode: int = 1,
    spread: bool = True,
    images: int = 1,
    cores: int = 0,
) -> ClusterPlan:
    """`encode` and `prefill` are requests in a step, as the paper counts; one of `images` items is one request."""
    return parse_cluster(
        cluster,
        spread=spread,
        deduplicate=False,
        preprocess_cores=cores,
        encode_policy="least_load",
        prefill_policy="least_load",
        encode=EncodeSchedulerConfig(max_encode_batch_items=encode * images, max_encode_batch_patches=1 << 40),
        prefill=PrefillSchedulerConfig(chunked_prefill_size=-1, max_prefill_tokens=49152, prefill_max_requests=prefill),
        decode=DecodeSchedulerConfig(max_running_requests=decode),
    )


def run(
    cluster: ClusterPlan, workload: str, rate: float, seed: int, slo: Slo | None = None, most_bad: int | None = None
) -> Metrics:
    simulation = Simulation(cluster, HARDWARE, Metrics(slo=slo), seed=seed)
    return simulation.run(load_workload(workload).requests(rate, seed, REQUESTS), most_bad=most_bad)


def mean(seeds: int, measure: Callable[[int], float]) -> float:
    return sum(measure(seed) for seed in range(seeds)) / seeds


Row = tuple[str, float, float]
"""(what, published, simulated)."""


def table_1(seeds: int) -> list[Row]:
    published = {8: (0.42, 0.42, 0.24), 16: (0.82, 0.81, 0.30), 32: (1.59, 1.54, 0.49), 64: (3.11, 3.08, 1.00)}
    rows = []
    for frames, values in published.items():
        for name, cluster, value in zip(("vLLM", "DistServe", "EPD"), ("8EPD", "7EP1D", "6E1P1D"), values, strict=True):
            chosen = plan(cluster, images=frames)
            found = mean(seeds, lambda s: run(chosen, f"video-mme-{frames}", 1.0, s).ttft.mean)  # noqa: B023
            rows.append((f"{frames} frames, {name} ({cluster}): TTFT", value, found))
    return rows


def table_4(seeds: int) -> list[Row]:
    rows = []
    for images, with_irp, without in ((2, 0.92, 1.46), (4, 1.02, 2.47), (6, 1.14, 3.37), (8, 1.74, 4.27)):
        for spread, value in ((True, with_irp), (False, without)):
            chosen = plan("6E1P1D", spread=spread, images=images)
            found = mean(seeds, lambda s: run(chosen, f"epd-synthetic-{images}", 0.25, s).ttft.mean)  # noqa: B023
            rows.append((f"{images} images, {'' if spread else 'no '}IRP: TTFT", value, found))
    return rows


def goodput_of(cluster: ClusterPlan, seeds: int) -> float:
    slo = PAPER_SLOS[MODEL][6]

    def attainment(rate: float) -> float:
        return mean(seeds, lambda s: run(cluster, "epd-synthetic-6", rate, s, slo, REQUESTS // 2).attainment())

    return goodput(attainment, start=0.5, precision=0.03, least=0.02).rate


def table_5(seeds: int) -> list[Row]:
    """Twice: how much of the pixels' cost the encoder itself bears decides when it is full, and nothing tells."""
    rows = []
    for cores, where in ((0, "pixels on the encoder"), (8, "pixels beside it")):
        best = plan("6E1P1D", encode=2, decode=128, images=6, cores=cores)
        others = random_plans(cores)
        chosen = [run(best, "epd-synthetic-6", 1.25, seed) for seed in range(seeds)]
        at = [run(other, "epd-synthetic-6", 1.25, 0) for other in others]
        found, average = goodput_of(best, seeds), sum(goodput_of(other, 1) for other in others) / len(others)
        rows += [
            (f"{where}: 6E1P1D, batch 2/1/128, IRP: goodput", 1.25, found),
            (f"{where}: mean of 10 random configurations: goodput", 0.56, average),
            (f"{where}: ratio", 2.2, found / average),
            (f"{where}: 6E1P1D at 1.25 requests/s: TTFT", 2.12, sum(m.ttft.mean for m in chosen) / seeds),
            (f"{where}: random at 1.25 requests/s: TTFT", 4.48, sum(m.ttft.mean for m in at) / len(at)),
            (f"{where}: 6E1P1D at 1.25 requests/s: TPOT", 0.031, sum(m.tpot.mean for m in chosen) / seeds),
            (f"{where}: random at 1.25 requests/s: TPOT", 0.025, sum(m.tpot.mean for m in at) / len(at)),
        ]
    return rows


def random_plans(cores: int) -> list[ClusterPlan]:
    """Ten of the paper's space: a split of eight devices, a batch for each stage, IRP or not."""
    draw, plans = random.Random(0), []
    for _ in range(10):
        encoders = draw.randint(1, 6)
        prefills = draw.randint(1, 7 - encoders)
        encode, prefill, decode = (draw.choice((1, 2, 4, 8, 16, 32, 64, 128)) for _ in range(3))
        spread = draw.random() < 0.5
        cluster = f"{encoders}E{prefills}P{8 - encoders - prefills}D"
        batches = {"encode": encode, "prefill": prefill, "decode": decode}
        plans.append(plan(cluster, spread=spread, images=6, cores=cores, **batches))
    return plans


def table_6(seeds: int) -> list[Row]:
    rows = []
    for cluster, name, values in (
        ("5E1P2D", "no switching (5E1P2D)", (61.10, 1.33, 0.12)),
        ("2E1P5D", "the split that switching ends with (2E1P5D), from the start", (28.01, 1.42, 0.05)),
    ):
        runs = [run(plan(cluster, decode=128), "role-switch", 3.0, seed) for seed in range(seeds)]
        found = [sum(getattr(m, what).mean for m in runs) / seeds for what in ("e2e", "ttft", "tpot")]
        for what, value, ours in zip(("latency", "TTFT", "TPOT"), values, found, strict=True):
            rows.append((f"{name}: {what}", value, ours))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/simulator_vs_paper.json")
    flags = parser.parse_args()
    console, results = Console(), {}
    tables = {"table 1": table_1, "table 4": table_4, "table 5": table_5, "table 6": table_6}
    for name, make in track(tables.items(), console=console, transient=True):
        results[name] = make(flags.seeds)
    for name, rows in results.items():
        table = Table(title=f"{name} (s, requests/s)")
        for column in ("", "published", "simulated", "difference"):
            table.add_column(column, justify="right" if column else "left")
        for what, published, simulated in rows:
            table.add_row(what, f"{published:g}", f"{simulated:.3g}", f"{simulated / published - 1:+.0%}")
        console.print(table)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    found: dict[str, Any] = {"commit": commit, "seeds": flags.seeds, "columns": ["what", "published", "simulated"]}
    flags.out.write_text(json.dumps(found | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
