"""What this machine offers: a GPU or not, and which ports are free. Nothing here imports torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

from sgl_epd.errors import ConfigError

PORT_SEARCH = 1000
"""How many ports above the wished one are tried."""


def has_gpu() -> bool:
    """An NVIDIA or AMD device node exists. Asking CUDA would initialise it, which a process that forks must not do."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd"))


def cpu_list() -> str:
    """The CPUs that this process may use, as `0-3` or `0,2,5`."""
    cpus = sorted(os.sched_getaffinity(0))
    if cpus == list(range(cpus[0], cpus[-1] + 1)) and len(cpus) > 1:
        return f"{cpus[0]}-{cpus[-1]}"
    return ",".join(map(str, cpus))


def is_free(port: int, host: str = "") -> bool:
    """True if a TCP server could listen on `port` now (as SGLang binds it: with SO_REUSEADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(wished: int, taken: Iterable[int] = ()) -> int:
    """The first free port at or above `wished` that is not in `taken`. Raises `ConfigError` if there is none."""
    avoid = set(taken)
    for port in range(wished, min(wished + PORT_SEARCH, 65536)):
        if port not in avoid and is_free(port):
            return port
    raise ConfigError(f"no free port between {wished} and {wished + PORT_SEARCH}")
