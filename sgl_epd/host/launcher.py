"""Starting a process: the protocol that the supervisor uses, and its plain implementation.

Whatever implements `Launcher` promises for each process that it starts:
- it leads its own session, so that a terminal's Ctrl-C does not reach it and all it starts can be found;
- it dies when the process that started it dies, whatever kills that one;
- its output is appended to `spec.log_path`, its input is empty, and `spec.env` is added to its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Protocol

from sgl_epd.errors import WorkerError
from sgl_epd.host.linux import die_with_parent
from sgl_epd.host.logs import open_log
from sgl_epd.host.spec import ProcessSpec


class Handle(Protocol):
    """A running or ended process."""

    @property
    def pid(self) -> int:
        """Process id, and the id of the session that the process leads."""
        ...

    def poll(self) -> int | None:
        """None while it runs, then its exit code (`-N`: ended by signal N). Never blocks."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM). Does nothing to an ended process."""
        ...

    def kill(self) -> None:
        """End it now (SIGKILL). Does nothing to an ended process."""
        ...


class Launcher(Protocol):
    """Starts processes for the supervisor, which calls it from one thread only."""

    def start(self, spec: ProcessSpec) -> Handle:
        """Start `spec` and return at once. Raises `WorkerError` if the program cannot be run."""
        ...

    def close(self) -> None:
        """Free what the launcher holds. Called once, when all that it started has ended."""
        ...


class SubprocessLauncher:
    """One `exec` a process."""

    def start(self, spec: ProcessSpec) -> Handle:
        parent = os.getpid()

        def before_exec() -> None:
            die_with_parent(signal.SIGKILL, parent)

        log = open_log(spec.log_path)
        try:
            child = subprocess.Popen(
                spec.argv,
                env=spec.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except OSError as error:
            raise WorkerError(f"cannot start {spec.name}: {spec.argv[0]}: {error.strerror}") from error
        finally:
            os.close(log)
        return SubprocessHandle(child)

    def close(self) -> None:
        return None


class SubprocessHandle:
    """A direct child."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        return self._child.poll()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
