"""`python -m sgl_epd.serve` as a real process, with fake workers and a fake router below it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from sgl_epd.worker.machine import free_port

ROOT = Path(__file__).parents[3]
FAKE = Path(__file__).with_name("fake_process.py")
PORT_BASE = int(os.environ.get("SGL_EPD_TEST_PORT_BASE", "22700"))
LIMIT_S = 15.0


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


class Host:
    """One `serve`. `mark` stands on the command line of every fake process and of what these start."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"fake-{uuid.uuid4().hex}"
        self.folder = folder
        self.log_dir = folder / "logs"
        self.output_path = folder / "serve.out"
        self.port = free_port(PORT_BASE)
        self.process: subprocess.Popen[bytes] | None = None
        self.program: tuple[str, ...] = ("-m", "sgl_epd.serve")
        self.terminal: int | None = None
        # A folder of its own shows what is left in it; short, for the paths of sockets.
        self.temporary = Path(tempfile.mkdtemp(prefix="h"))

    def start(self, *flags: str, pools: tuple[str, ...] = ("--encode", "1", "--prefill", "1", "--decode", "1")) -> None:
        fake = f"{sys.executable} {FAKE} --fake-mark {self.mark}"
        command = [sys.executable, *self.program, "--model-path", "m", "--engine", "emulated", *pools]
        command += ["--worker-command", fake, "--router-command", fake, "--log-dir", str(self.log_dir)]
        command += ["--port", str(self.port), "--worker-port-base", str(self.port + 1)]
        command += ["--worker-grace-secs", "2", "--drain-secs", "3", *flags]
        path = os.pathsep.join([str(ROOT), str(ROOT / "router")])
        env = os.environ | {"PYTHONPATH": path, "TMPDIR": str(self.temporary)}
        with self.output_path.open("ab") as output:
            where = output.fileno() if self.terminal is None else self.terminal
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if self.terminal is None else self.terminal,
                stdout=where,
                stderr=where,
                env=env,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=None if self.terminal is None else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    def wait_ready(self) -> None:
        self.wait_for("ready after")

    def wait_for(self, text: str) -> None:
        assert self.process is not None
        wait_until(lambda: text in self.output or self.process.poll() is not None, f"{text!r} in:\n{self.output}")
        assert text in self.output, f"ended with {self.process.poll()}:\n{self.output}"

    def exit_code(self, limit_s: float = LIMIT_S) -> int:
        assert self.process is not None
        return self.process.wait(limit_s)

    def status(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.log_dir / "status.json").read_text())
        return loaded

    def entry(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(entry for entry in self.status()["processes"] if entry["name"] == name)
        return found

    def marked(self) -> list[int]:
        """Every living process of this host's fakes, wherever it hangs in the process tree."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):
                if self.mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def supervisor_pid(self) -> int:
        return next(child.pid for child in psutil.Process(self.pid).children())

    def assert_nothing_left(self) -> None:
        """No process, no port and no temporary file of ours is there (soon)."""
        wait_until(lambda: not self.marked(), "no process left", 5.0)
        ports = [int(entry["url"].rsplit(":", 1)[1]) for entry in self.status()["processes"]]
        wait_until(lambda: all(free_port(port) == port for port in ports), "all ports are free", 2.0)
        wait_until(lambda: not list(self.temporary.glob("sgl-epd-*")), "no temporary files", 2.0)

    def destroy(self) -> None:
        """What a test left, also when it failed."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)
