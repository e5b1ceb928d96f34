"""How long until encode, prefill, decode and the router answer, and what they burn when idle.

    python benchmark/startup.py [--repeat 3] [--output benchmark/results/startup.json]

Stock SGLang and ours in one run on one machine, alternating: stock is `python -m sglang.launch_server` with the same
flags and environment but without sgl-epd's hooks; ours is `python -m sgl_epd.launch_server`. Each round starts all
four processes at once (the router is ours in both), waits for `/health` of each, reads the CPU time of the whole
process tree, watches it idle, then times the first request with an image through the router (ours only: stock prefill
cannot send KV on a CPU). Run it on an idle machine: the load average at the start is stored with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from sgl_epd.demo import model_path
from sgl_epd.launch_server import this_machine
from sgl_epd.worker.machine import free_port
from sgl_epd.worker.plan import Role, make_plan

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 400
IDLE_S = 20.0
OURS_ONLY = ("SGL_EPD_ROLE", "SGL_EPD_MODEL_ARCH", "SGLANG_EXTERNAL_MODEL_PACKAGE")
GOAL_READY_S, GOAL_IDLE_CORES = 45.0, 0.1


class Round:
    """One start of all four processes; `close` ends them."""

    def __init__(self, kind: str, model: str, folder: Path, flags: list[str]) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        ports: list[int] = []
        for wished in range(24000, 24060, 10):
            ports.append(free_port(wished, ports))
        self.urls = [f"http://127.0.0.1:{port}" for port in ports[:4]]
        encode, prefill, decode, router = ports[:4]
        bootstrap, encoders = ports[4:6]
        self.worker(kind, "encode", model, encode, *flags)
        extra = ["--disaggregation-bootstrap-port", str(bootstrap), "--encoder-bootstrap-port", str(encoders)]
        self.worker(kind, "prefill", model, prefill, *extra, "--encoder-urls", self.urls[0], *flags)
        self.worker(kind, "decode", model, decode, *flags)
        pools = ["--encode", self.urls[0], "--prefill", self.urls[1], str(bootstrap), "--decode", self.urls[2]]
        self.start("router", ["-m", "sgl_epd.launch_router", "--epd-disaggregation", *pools, "--host", "127.0.0.1",
                              "--port", str(router), "--prometheus-port", "0"], {})  # fmt: skip

    def worker(self, kind: str, role: str, model: str, port: int, *flags: str) -> None:
        argv = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port), *flags]
        if kind == "ours":
            self.start(role, ["-m", "sgl_epd.launch_server", "--role", role, *argv], {})
            return
        plan = make_plan(Role(role), argv, this_machine(), os.environ)
        env = {key: value for key, value in plan.env.items() if key not in OURS_ONLY}
        own = ["--sleep-on-idle"]  # ours by default; stock schedulers spin
        self.start(role, ["-m", "sglang.launch_server", *(a for a in plan.argv if a not in own)], env)

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *argv], stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **env}
                )
            )

    def wait(self, started_at: float) -> dict[str, float]:
        """Seconds until each server answered `/health` with 200."""
        ready: dict[str, float] = {}
        names = ("encode", "prefill", "decode", "router")
        while len(ready) < len(names):
            for name, url, process in zip(names, self.urls, self.processes, strict=True):
                if name not in ready and answers(url + "/health"):
                    ready[name] = time.monotonic() - started_at
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended with {process.returncode}; see {self.folder}/{name}.log")
            if time.monotonic() - started_at > READY_TIMEOUT_S:
                raise SystemExit(f"not ready after {READY_TIMEOUT_S} s: {set(names) - set(ready)}; see {self.folder}")
            time.sleep(0.1)
        return ready

    def cpu_s(self) -> float:
        """User and system time of all living processes of this round."""
        total = 0.0
        for process in self.tree():
            times = process.cpu_times()
            total += times.user + times.system
        return total

    def tree(self) -> list[psutil.Process]:
        roots = [psutil.Process(process.pid) for process in self.processes]
        return roots + [child for root in roots for child in root.children(recursive=True)]

    def close(self) -> None:
        victims = self.tree()
        for victim in victims:
            victim.kill()
        psutil.wait_procs(victims, timeout=20)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def measure(kind: str, model: str, flags: list[str]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix=f"startup-{kind}-"))
    started_at = time.monotonic()
    servers = Round(kind, model, folder, flags)
    try:
        ready = servers.wait(started_at)
        cpu_to_ready_s = servers.cpu_s()
        time.sleep(5)  # what upstream does right after it is ready is not idling
        before = servers.cpu_s()
        time.sleep(IDLE_S)
        idle_cores = (servers.cpu_s() - before) / IDLE_S
        first_s = first_request(servers.urls[3]) if kind == "ours" else None
        return {
            "kind": kind,
            "ready_s": max(ready.values()),
            "ready_each_s": ready,
            "cpu_to_ready_s": cpu_to_ready_s,
            "idle_cores": idle_cores,
            "first_request_after_idle_s": first_s,
        }
    finally:
        servers.close()


def first_request(url: str) -> list[float]:
    """Seconds of the first, second and third request with an image after an idle time."""
    from sgl_epd.demo.samples import sample

    times = []
    for seed in range(3):
        body = json.dumps({"model": "demo", "messages": sample("number", seed).messages(), "max_tokens": 16}).encode()
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
        )
        started_at = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as reply:
            reply.read()
        times.append(time.monotonic() - started_at)
    return times


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=["stock", "ours"], default=["stock", "ours"])
    parser.add_argument("--model-path", default=str(model_path()))
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark" / "results" / "startup.json")
    args, flags = parser.parse_known_args()
    load = os.getloadavg()[0]
    rounds = []
    for number in range(args.repeat):
        for kind in args.kinds:
            rounds.append(measure(kind, args.model_path, flags))
            print(f"[{number + 1}/{args.repeat}] {kind}: {rounds[-1]['ready_s']:.1f} s", flush=True)
    report(rounds, args.output, load)


def report(rounds: list[dict[str, Any]], output: Path, load: float) -> None:
    result = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load_at_start": load},
        "rounds": rounds,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    print("\n| | ready, s (median; all) | CPU until ready, s | idle, cores | first request after idle, s |")
    print("|---|---|---|---|---|")
    for kind in ("stock", "ours"):
        of_kind = [r for r in rounds if r["kind"] == kind]
        if not of_kind:
            continue
        ready = [r["ready_s"] for r in of_kind]
        first = [r["first_request_after_idle_s"][0] for r in of_kind if r["first_request_after_idle_s"]]
        print(
            f"| {kind} | {statistics.median(ready):.1f} ({', '.join(f'{s:.1f}' for s in ready)})"
            f" | {statistics.median(r['cpu_to_ready_s'] for r in of_kind):.1f}"
            f" | {statistics.median(r['idle_cores'] for r in of_kind):.3f}"
            f" | {f'{statistics.median(first):.2f}' if first else '-'} |"
        )
    print(f"\ngoals for ours: ready in at most {GOAL_READY_S:.0f} s, idle below {GOAL_IDLE_CORES} cores; {output}")


if __name__ == "__main__":
    main()
