"""What the supervisor tells about its processes: to the reporter on the terminal and to `status.json`."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class ProcessView:
    """One process at one moment. `age_s` is the time spent in `state`."""

    name: str
    role: str
    url: str
    state: str
    pid: int | None
    restarts: int
    age_s: float
    log_path: Path


class Reporter(Protocol):
    """Where progress and events are shown. No method may fail because nobody is looking any more."""

    def tick(self, views: Sequence[ProcessView], elapsed_s: float) -> None:
        """Called several times a second while the host starts."""
        ...

    def ready(self, text: str) -> None:
        """Start-up is over; from now on only events come."""
        ...

    def event(self, text: str) -> None:
        """Something that a person should know has happened."""
        ...

    def close(self) -> None: ...


def write_status(path: Path, phase: str, url: str, views: Sequence[ProcessView]) -> None:
    """Replace `status.json` in one step, so that a reader never sees half of it."""
    content = {
        "pid": os.getpid(),
        "phase": phase,
        "url": url,
        "written_at": time.time(),
        "processes": [
            {
                "name": view.name,
                "role": view.role,
                "url": view.url,
                "state": view.state,
                "pid": view.pid,
                "restarts": view.restarts,
                "log": str(view.log_path),
            }
            for view in views
        ],
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
