"""One log file a process: appended to by the process itself, bounded and read by the supervisor.

A log is bounded by copying it to `NAME.log.1` and emptying it (what logrotate calls `copytruncate`): the process keeps
writing to the file that it holds open, and because that file is open for appending it goes on at the new end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

_TAIL_BYTES = 64 * 1024
_LONGEST_LINE = 300


def open_log(path: Path) -> int:
    """A file descriptor for a process's output. `O_APPEND` is what makes `bound` safe."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def previous(path: Path) -> Path:
    """Where the older part of a log is kept."""
    return path.with_name(path.name + ".1")


def begin(path: Path) -> None:
    """Start an empty log; the log of an earlier run becomes the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > 0:
            path.replace(previous(path))
    os.close(open_log(path))


def mark(path: Path, text: str) -> None:
    """Append a line of the supervisor's own, so that a restart can be seen in the log."""
    line = f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} serve: {text}\n"
    log = open_log(path)
    try:
        os.write(log, line.encode())
    finally:
        os.close(log)


def bound(path: Path, max_bytes: int) -> bool:
    """Move the content of a log that has outgrown `max_bytes` to the previous log. True if that was done."""
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    with path.open("rb") as source, previous(path).open("wb") as target:
        shutil.copyfileobj(source, target)
        # What was written while we copied; after this only the instant before `truncate` is left.
        shutil.copyfileobj(source, target)
        os.truncate(path, 0)
    return True


def tail(path: Path, lines: int) -> list[str]:
    """The last non-empty lines, oldest first; fewer or none if there are not that many.

    A line that is too long to be read (SGLang prints its whole configuration in one) is cut.
    """
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    # A progress bar rewrites its line with carriage returns: the last state is the line.
    shown = (line.rstrip().rsplit("\r", 1)[-1] for line in text.split("\n"))
    return [_cut(line) for line in shown if line.strip()][-lines:]


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."
