"""A private directory for one run of `serve`: its workers' temporary files, and what must be cleaned up after them.

Each worker gets a folder of it as `TMPDIR`. Whatever the worker leaves there (SGLang leaves six IPC sockets a server
when it is killed) is ours by construction and goes away with the directory. The directory is locked as long as a
process of the run lives, so that a later run can remove what a killed one could not.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import tempfile
from pathlib import Path

from sgl_epd.host.leftovers import Ledger

_PREFIX = "sgl-epd-"
_LOCK = "lock"
# A Unix socket's path has at most 107 bytes, and an engine appends to TMPDIR.
_MAX_ROOT = 48


class RunDir:
    """Created before the guard forks; both processes hold the lock through the inherited descriptor."""

    def __init__(self, root: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        self.ledger = Ledger(self.path / "ledger.json")
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def environment(self, name: str) -> dict[str, str]:
        """What process `name` must find in its environment to keep its temporary files here."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        env = {"TMPDIR": str(folder)}
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            # Compiled kernels are worth keeping; PyTorch would put them below TMPDIR.
            env["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
        return env

    def remove(self) -> list[str]:
        """Remove the directory and what the ledger names. Call it when no process of the run is left."""
        removed = self.ledger.sweep()
        shutil.rmtree(self.path, ignore_errors=True)
        return removed


def create() -> RunDir:
    """A new run directory, after removing those of runs that were killed together with their guard."""
    root = Path(tempfile.gettempdir())
    if len(str(root)) > _MAX_ROOT:
        root = Path("/tmp")
    for stale in root.glob(_PREFIX + "*"):
        _remove_if_stale(stale)
    return RunDir(root)


def _remove_if_stale(path: Path) -> None:
    """Remove a run directory of this user that no process holds any more."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            return
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Ledger(path / "ledger.json").sweep()
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
