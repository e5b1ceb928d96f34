"""Ports for the processes of one host: disjoint, free when we look, and named in words when one is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import psutil

from sgl_epd.errors import ConfigError

MAX_PORT = 65535


@dataclasses.dataclass(frozen=True)
class Port:
    """One assigned port: whose it is and what for."""

    number: int
    owner: str
    purpose: str


class PortAllocator:
    """Hands out free ports from `base` upwards. `is_free(port)` is asked once for each candidate."""

    def __init__(self, base: int, is_free: Callable[[int], bool]) -> None:
        self._next = base
        self._base = base
        self._is_free = is_free
        self.assigned: list[Port] = []
        self.skipped: list[int] = []

    def fix(self, number: int, owner: str, purpose: str, flag: str) -> int:
        """Assign a port that the user chose with `flag`. Raises `ConfigError` if it cannot be had."""
        if not 0 < number <= MAX_PORT:
            raise ConfigError(f"{flag} {number}: a port is a number from 1 to {MAX_PORT}")
        for port in self.assigned:
            if port.number == number:
                raise ConfigError(f"{flag} {number}: that is already the {port.purpose} port of {port.owner}")
        if not self._is_free(number):
            raise ConfigError(
                f"port {number} ({purpose} of {owner}) is taken by {holder(number)}; choose another with {flag}"
            )
        return self._assign(number, owner, purpose)

    def take(self, owner: str, purpose: str) -> int:
        """Assign the next free port. Raises `ConfigError` when there is none left."""
        taken = {port.number for port in self.assigned}
        while self._next <= MAX_PORT:
            number = self._next
            self._next += 1
            if number in taken:
                continue
            if self._is_free(number):
                return self._assign(number, owner, purpose)
            self.skipped.append(number)
        raise ConfigError(f"no free port from {self._base} upwards; choose another --worker-port-base")

    def _assign(self, number: int, owner: str, purpose: str) -> int:
        self.assigned.append(Port(number, owner, purpose))
        return number


def holder(port: int) -> str:
    """Who listens on a TCP port, for an error message."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return "another process"
    for connection in connections:
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.NoSuchProcess:
                break
    return "another process"
