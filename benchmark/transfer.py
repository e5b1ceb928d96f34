"""How fast each transfer backend moves one embedding from process to process, and how much of that is the machine.

    python benchmark/transfer.py [--repeat 100] [--output benchmark/results/transfer.json]

For every size, all movers take turns in random order, so that whatever else the machine does hits all of them: the
four backends; a copy within one process; a raw TCP socket; and Mooncake by itself in two ways: as SGLang calls it,
`batch_transfer_sync_write`, and `transfer_submit_write` asked again in a tight loop. A write is timed from the call
until its bytes are known to lie in the other process. One write is under way at a time, so bandwidth is size over the
median time. A second table shows what 4 MiB cost when they lie in many pieces. The goals compare with the faster of
Mooncake's two ways.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sgl_epd.protocol.peers import MooncakePeer, Peer
from sgl_epd.transfer.base import Region, Transfer
from sgl_epd.transfer.local import LocalHub, LocalTransfer
from sgl_epd.transfer.mooncake import MooncakeConfig, MooncakeTransfer, create_engine
from sgl_epd.transfer.pieces import Piece
from sgl_epd.transfer.shm import ShmTransfer
from sgl_epd.transfer.zmq import ZmqTransfer

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
KIB, MIB = 2**10, 2**20
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
NBYTES = 2 * SIZES[-1]
PIECES = (1, 4, 16, 64, 256, 1024)
TIMEOUT_S = 60.0
GOAL_SHARE, GOAL_LATENCY = 0.9, 1.3
LARGE, MEDIUM = 64 * MIB, 4 * MIB


Times = dict[str, float]


class Targets(msgspec.Struct):
    """What the other process offers."""

    peers: dict[str, Peer]
    tcp_port: int


class Mover(NamedTuple):
    """`move` writes the first n bytes in k equal pieces and returns when they have arrived."""

    name: str
    move: Callable[[int, int], None]
    target: str | None
    """Whose region shows in the end whether the bytes are right."""


def pieces(nbytes: int, count: int) -> list[Piece]:
    """Every other block on both sides, so that no two of them are neighbours."""
    size = nbytes // count
    return [Piece(i * size, (2 * i if count > 1 else i) * size, size) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark" / "results" / "transfer.json")
    parser.add_argument("--target", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("GLOG_minloglevel", "3")
    if args.target:
        serve()
        return
    load = os.getloadavg()[0]
    command = [sys.executable, __file__, "--target"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            result = run(process, args.repeat)
        finally:
            process.kill()
    report(about(load) | result, args.output)
    os._exit(0)  # Mooncake's engines end in their own time


def serve() -> None:
    """The other process: one region for each backend, and a TCP server."""
    transfers = {"shm": ShmTransfer(), "zmq": ZmqTransfer(HOST), "mooncake": mooncake(), "mooncake itself": mooncake()}
    regions = {name: transfer.allocate(NBYTES).data for name, transfer in transfers.items()}
    regions["tcp"] = memory()
    server = socket.create_server((HOST, 0))
    threading.Thread(target=receive, args=(server, regions["tcp"]), daemon=True).start()
    peers = {name: transfer.describe() for name, transfer in transfers.items()}
    print(msgspec.json.encode(Targets(peers, server.getsockname()[1])).decode(), flush=True)
    for line in sys.stdin:
        name, nbytes = line.rsplit(" ", 1)
        print(digest(regions[name], int(nbytes)), flush=True)


def receive(server: socket.socket, region: Any) -> None:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    view = memoryview(region)
    while header := connection.recv(8, socket.MSG_WAITALL):
        left = view[: int.from_bytes(header, "big")]
        while left:
            left = left[connection.recv_into(left) :]
        connection.sendall(b"k")


def mooncake() -> MooncakeTransfer:
    return MooncakeTransfer(MooncakeConfig(host=HOST, protocol="tcp"))


def memory() -> Any:
    """Of the same kind as the backends allocate, so that all movers have the same pages."""
    return Region.over(mmap.mmap(-1, NBYTES)).data


def digest(data: Any, nbytes: int) -> str:
    return hashlib.sha256(data[:nbytes].tobytes()).hexdigest()


def movers(targets: Targets, source: Any) -> list[Mover]:
    other = memory()

    def memcpy(nbytes: int, count: int) -> None:
        for local, remote, length in pieces(nbytes, count):
            other[remote : remote + length] = source[local : local + length]

    hub = LocalHub()
    LocalTransfer(hub, "other").allocate(NBYTES)
    ours: dict[str, tuple[Transfer[Any], Peer]] = {
        "local": (LocalTransfer(hub, "own"), hub.transfers["other"].describe()),
        "shm": (ShmTransfer(), targets.peers["shm"]),
        "zmq": (ZmqTransfer(HOST), targets.peers["zmq"]),
        "mooncake": (mooncake(), targets.peers["mooncake"]),
    }
    itself = targets.peers["mooncake itself"]
    assert isinstance(itself, MooncakePeer)
    return [
        Mover("memcpy", memcpy, None),
        Mover("raw tcp", raw_tcp(targets.tcp_port, source), "tcp"),
        *(backend(name, transfer, peer, source) for name, (transfer, peer) in ours.items()),
        *mooncake_itself(itself, source),
    ]


def backend(name: str, transfer: Transfer[Any], peer: Peer, source: Any) -> Mover:
    region = transfer.allocate(NBYTES)
    assert region.data is not None
    region.data[:] = source

    def move(nbytes: int, count: int) -> None:
        transfer.write(peer, pieces(nbytes, count), TIMEOUT_S).done.result()

    return Mover(name, move, None if name == "local" else name)


def raw_tcp(port: int, source: Any) -> Callable[[int, int], None]:
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    view = memoryview(source)

    def move(nbytes: int, count: int) -> None:
        for _ in range(count):
            connection.sendall((nbytes // count).to_bytes(8, "big"))
            connection.sendall(view[: nbytes // count])
        connection.recv(count, socket.MSG_WAITALL)

    return move


def mooncake_itself(peer: MooncakePeer, source: Any) -> list[Mover]:
    engine = create_engine(MooncakeConfig(host=HOST, protocol="tcp"))
    address = source.ctypes.data
    if engine.register_memory(address, source.nbytes) != 0:
        raise SystemExit("Mooncake cannot register the source")

    def places(nbytes: int, count: int) -> tuple[list[int], list[int], list[int]]:
        parts = pieces(nbytes, count)
        return [address + p.local for p in parts], [peer.address + p.remote for p in parts], [p.length for p in parts]

    def sync(nbytes: int, count: int) -> None:
        if engine.batch_transfer_sync_write(peer.session, *places(nbytes, count)) != 0:
            raise SystemExit("Mooncake failed")

    def submit(nbytes: int, count: int) -> None:
        batches = [
            engine.transfer_submit_write(peer.session, *each) for each in zip(*places(nbytes, count), strict=True)
        ]
        for batch in batches:
            while (status := engine.transfer_check_status(batch)) == 0:
                pass
            if status < 0:
                raise SystemExit("Mooncake failed")

    target = "mooncake itself"
    return [Mover("mooncake sync", sync, target), Mover("mooncake submit", submit, target)]


def run(process: subprocess.Popen[str], repeat: int) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    targets = msgspec.json.decode(process.stdout.readline(), type=Targets)
    source = memory()
    source[:] = np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8)
    everybody = movers(targets, source)
    sizes = {size: take_turns(everybody, size, 1, repeat) for size in SIZES}
    for mover in everybody:
        if mover.target is not None:
            process.stdin.write(f"{mover.target} {SIZES[-1]}\n")
            process.stdin.flush()
            if process.stdout.readline().strip() != digest(source, SIZES[-1]):
                raise SystemExit(f"{mover.name} did not bring the right bytes")
    scattered = {count: take_turns(everybody, MEDIUM, count, repeat) for count in PIECES}
    return {"repeat": repeat, "by_size": sizes, "of_4_mib_by_pieces": scattered}


def take_turns(everybody: list[Mover], nbytes: int, count: int, repeat: int) -> dict[str, Times]:
    times: dict[str, list[float]] = {mover.name: [] for mover in everybody}
    order = random.Random(nbytes + count)
    for turn in range(repeat + 2):
        # In another order each time: whoever follows one that uses the same memory finds it in the caches.
        for mover in order.sample(everybody, len(everybody)):
            started = time.perf_counter()
            mover.move(nbytes, count)
            if turn >= 2:  # the first ones open connections and touch memory
                times[mover.name].append(time.perf_counter() - started)
    return {name: summary(each) for name, each in times.items()}


def summary(seconds: list[float]) -> Times:
    return {
        "min_ms": round(min(seconds) * 1e3, 4),
        "p50_ms": round(statistics.median(seconds) * 1e3, 4),
        "p90_ms": round(statistics.quantiles(seconds, n=10)[-1] * 1e3, 4),
    }


def about(load: float) -> dict[str, Any]:
    def git(*argv: str) -> str:
        return subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in cpuinfo if line.startswith("model name")), platform.machine())
    return {
        "commit": git("rev-parse", "HEAD"),
        "uncommitted": git("status", "--porcelain", "--", "sgl_epd/transfer", "benchmark/transfer.py").splitlines(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "load_at_start": load},
    }


def report(result: dict[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"commit {result['commit'][:12]}, {result['machine']['cpu']}, load {result['machine']['load_at_start']:.1f}\n"
    )
    print("median ms (90 % below) and GB/s by size")
    table({f"{size // KIB} KiB": (size, times) for size, times in result["by_size"].items()})
    print("\n4 MiB in so many pieces")
    table({str(count): (MEDIUM, times) for count, times in result["of_4_mib_by_pieces"].items()})
    print("\n" + "\n".join(goals(result["by_size"])) + f"\n{output}")


def table(rows: dict[str, tuple[int, dict[str, Times]]]) -> None:
    names = list(next(iter(rows.values()))[1])
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for label, (nbytes, times) in rows.items():
        print(f"| {label} | " + " | ".join(cell(nbytes, times[name]) for name in names) + " |")


def cell(nbytes: int, times: Times) -> str:
    middle = times["p50_ms"]
    return f"{middle:.2f} ({times['p90_ms']:.2f}), {nbytes / middle / 1e6:.2f}"


def goals(by_size: dict[int, dict[str, Times]]) -> list[str]:
    def against_itself(size: int) -> float:
        itself = min(by_size[size][name]["p50_ms"] for name in ("mooncake sync", "mooncake submit"))
        return by_size[size]["mooncake"]["p50_ms"] / itself

    share, latency = 1 / against_itself(LARGE), against_itself(MEDIUM)
    return [
        f"64 MiB through mooncake: {share:.0%} of what Mooncake itself moves (goal: at least {GOAL_SHARE:.0%}): "
        + ("met" if share >= GOAL_SHARE else "MISSED"),
        f"4 MiB through mooncake: {latency:.2f} times Mooncake's own latency (goal: at most {GOAL_LATENCY}): "
        + ("met" if latency <= GOAL_LATENCY else "MISSED"),
    ]


if __name__ == "__main__":
    main()
