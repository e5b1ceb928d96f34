"""Shared memory and socket files that a killed worker cannot unlink itself.

SGLang keeps `/dev/shm/sglang_loads_*` and multimodal segments (`sgl_shm_mm_*`) there, and encoders with several ranks
bind `/tmp/*_schedule_*` sockets; after a SIGKILL nobody removes them. While our processes live, `Ledger.observe` notes
which such files they map, hold open or are bound to. When they are gone, `sweep` unlinks those that nobody uses.
Nothing is removed on the strength of its name.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

_SHM = "/dev/shm/"
_PROC = Path("/proc")


class Ledger:
    """The files seen in use by our processes, kept on disk because another process may have to do the sweep."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, int] = _load(path)

    def observe(self, pids: Iterable[int]) -> None:
        """Note what the processes use now. Costs one read of each process's memory map."""
        found = {name: inode for name in files_in_use(pids) if (inode := _inode(name)) is not None}
        if found.items() <= self._known.items():
            return
        self._known |= found
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._known), encoding="utf-8")
        temporary.replace(self._path)

    def sweep(self) -> list[str]:
        """Unlink what was noted, is still the same file, is ours, and is used by no living process."""
        self._known = _load(self._path)
        still_there = {name for name, inode in self._known.items() if _inode(name) == inode}
        if not still_there:
            return []
        used = files_in_use(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
        removed = []
        for name in sorted(still_there - used):
            with contextlib.suppress(OSError):
                if os.lstat(name).st_uid == os.getuid():
                    os.unlink(name)
                    removed.append(name)
        return removed


def files_in_use(pids: Iterable[int]) -> set[str]:
    """Paths under `/dev/shm` that the processes map or hold open, and socket files that they are bound to."""
    sockets = _socket_files()
    found: set[str] = set()
    for pid in pids:
        # The process may end, or belong to another user, at any moment.
        with contextlib.suppress(OSError):
            found |= _mapped(pid)
            found |= _opened(pid, sockets)
    return found


def _mapped(pid: int) -> set[str]:
    with (_PROC / str(pid) / "maps").open(encoding="utf-8", errors="replace") as maps:
        # address perms offset dev inode path
        return {line.split(None, 5)[5].rstrip("\n") for line in maps if _SHM in line and "(deleted)" not in line}


def _opened(pid: int, sockets: dict[str, str]) -> set[str]:
    found = set()
    for entry in (_PROC / str(pid) / "fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            if target.startswith(_SHM) and not target.endswith("(deleted)"):
                found.add(target)
            elif target in sockets:
                found.add(sockets[target])
    return found


def _socket_files() -> dict[str, str]:
    """`socket:[inode]`, as a descriptor shows it -> the path that the socket is bound to."""
    result = {}
    with contextlib.suppress(OSError), (_PROC / "net" / "unix").open(encoding="utf-8", errors="replace") as table:
        next(table)
        for line in table:
            # Num RefCount Protocol Flags Type St Inode Path
            fields = line.split(None, 7)
            if len(fields) == 8 and fields[7].startswith("/"):
                result[f"socket:[{fields[6]}]"] = fields[7].rstrip("\n")
    return result


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None


def _load(path: Path) -> dict[str, int]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): int(value) for key, value in loaded.items()} if isinstance(loaded, dict) else {}
