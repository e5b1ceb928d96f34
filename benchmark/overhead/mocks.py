"""Builds and drives the two C programs: mock workers and the load client."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPUCLOCK_SCHED = 2  # <linux/posix-timers.h>
SOURCES = Path(__file__).resolve().parent.parent / "mocks"


def pin(core: int) -> Any:
    """A `preexec_fn` that keeps the child, and all that it starts, on one core."""
    return lambda: os.sched_setaffinity(0, {core})


def process_seconds(pid: int) -> float:
    """User and system time of all threads of a process, by its own clock: exact to the nanosecond."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def build(folder: Path) -> None:
    """Compile `worker` and `load` into `folder`. Raises CalledProcessError with the compiler's output on stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    for name in ("worker", "load"):
        source, binary = SOURCES / f"{name}.c", folder / name
        if binary.exists() and binary.stat().st_mtime > source.stat().st_mtime:
            continue
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", str(binary), str(source)], check=True)


@dataclass(frozen=True)
class Load:
    """One run of the load client."""

    path: str
    body: Path
    concurrency: int
    seconds: float
    min_requests: int
    events: int = 0


class Workers:
    """Mock workers: `prefill` and `decode` ports, all served by one process."""

    def __init__(self, binaries: Path, prefill: list[int], decode: list[int], core: int) -> None:
        self.prefill, self.decode = prefill, decode
        specs = [f"{port}:prefill" for port in prefill] + [f"{port}:decode" for port in decode]
        command = [str(binaries / "worker"), *specs]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=pin(core))
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the mock workers did not start on ports {prefill + decode}")

    def reset(self, events: int, gap_us: int) -> None:
        """Zero the counters and set the shape of streams."""
        self._get(f"/mock/reset?events={events}&gap_us={gap_us}")

    def stats(self) -> dict[str, dict[str, int]]:
        """Sums over the ports of each role: legs, streams, bad, other, bytes, accepted, open."""
        sums: dict[str, dict[str, int]] = {"prefill": {}, "decode": {}}
        for entry in json.loads(self._get("/mock/stats")):
            total = sums[entry["role"]]
            for key, value in entry.items():
                if key not in ("port", "role"):
                    total[key] = total.get(key, 0) + value
        return sums

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.decode[0]}{path}", timeout=10) as reply:
            return bytes(reply.read())

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return process_seconds(self._process.pid)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def run_load(binaries: Path, port: int, load: Load, core: int) -> dict[str, Any]:
    """Run the load client against `port`; its JSON result, times in ms."""
    command = [str(binaries / "load"), str(port), load.path, str(load.body), str(load.concurrency)]
    command += [str(load.seconds), str(load.min_requests), str(load.events)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=pin(core), timeout=300)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
