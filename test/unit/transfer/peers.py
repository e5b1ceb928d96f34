"""Peers to write to: another process for the backends that cross processes, an object for `local`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from make_transfer import digest, make

from sgl_epd.protocol.peers import Peer
from sgl_epd.transfer.local import LocalHub, LocalTransfer

BACKENDS = ("local", "shm", "zmq", "mooncake")


def _state(task: Path) -> str:
    """The one-letter state of a thread, which follows its name in brackets."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Target(Protocol):
    descriptor: Peer

    def digest(self, offset: int, length: int) -> str: ...

    def kill(self) -> None: ...


class ProcessTarget:
    """A process that owns a region and does nothing but tell what is in it."""

    def __init__(self, backend: str, nbytes: int) -> None:
        script = Path(__file__).parent / "peer_process.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), backend, str(nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.descriptor: Peer = msgspec.json.decode(self._line(), type=Peer)  # type: ignore[arg-type]

    def digest(self, offset: int, length: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{offset} {length}\n")
        self.process.stdin.flush()
        return self._line().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Returns when every thread has stopped: a signal only asks for it, and a busy machine takes its time."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while not all(_state(task) == "T" for task in tasks.iterdir()):
            time.sleep(0.005)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Let it close its transfer and exit."""
        self.process.communicate(timeout=20)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


class LocalTarget:
    def __init__(self, hub: LocalHub, name: str, nbytes: int) -> None:
        self.transfer = LocalTransfer(hub, name)
        self.transfer.allocate(nbytes)
        self.descriptor: Peer = self.transfer.describe()

    def digest(self, offset: int, length: int) -> str:
        assert self.transfer.region.data is not None
        return digest(self.transfer.region.data[offset : offset + length].tobytes())

    def kill(self) -> None:
        self.transfer.close()


class Bench:
    """One backend's own transfer with a region, and as many targets as a test asks for."""

    def __init__(self, backend: str, nbytes: int) -> None:
        self.backend = backend
        self.nbytes = nbytes
        self.hub = LocalHub()
        self.targets: list[Target] = []
        if backend == "mooncake":
            pytest.importorskip("mooncake.engine")
        self.transfer = LocalTransfer(self.hub, "own") if backend == "local" else make(backend)
        self.transfer.allocate(nbytes)
        assert self.transfer.region.data is not None
        self.data = self.transfer.region.data

    def target(self) -> Target:
        target: Target
        if self.backend == "local":
            target = LocalTarget(self.hub, str(len(self.targets)), self.nbytes)
        else:
            target = ProcessTarget(self.backend, self.nbytes)
        self.targets.append(target)
        return target

    def process(self) -> ProcessTarget:
        target = self.target()
        assert isinstance(target, ProcessTarget)
        return target

    def close(self) -> None:
        self.transfer.close()
        for target in self.targets:
            target.kill()
            if isinstance(target, ProcessTarget):
                for pipe in (target.process.stdin, target.process.stdout):
                    assert pipe is not None
                    pipe.close()


@contextmanager
def bench(backend: str, nbytes: int) -> Iterator[Bench]:
    made = Bench(backend, nbytes)
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
