"""What one supervised process is: the value that `layout` makes, a launcher starts and a reporter shows."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

ROUTER_ROLE = "router"


@dataclasses.dataclass(frozen=True)
class ProcessSpec:
    """How to start one process and how to ask it whether it is well.

    `command` is what runs (`python -m sgl_epd.launch_server`), `args` are its flags; they are apart so that a launcher
    which already holds that program in memory needs only the flags. `env` is added to the environment.
    """

    name: str
    role: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    url: str
    health_path: str = "/health"

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.command, *self.args)

    @property
    def is_router(self) -> bool:
        return self.role == ROUTER_ROLE

    def environment(self) -> dict[str, str]:
        """The whole environment of the process."""
        return {**os.environ, **self.env}

    def shell_line(self) -> str:
        """What a user would type to start this process by hand."""
        assignments = [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        return " ".join([*assignments, shlex.join(self.argv)])
