"""Wake-ups for large bodies: not for every segment, but when a good piece has arrived.

A client on a fast network is slower than this process, so each segment would wake it: a dozen times for a megabyte.
`SO_RCVLOWAT` makes the kernel wait for more (see socket(7) and tcp_set_rcvlowat, which also enlarges the window). So a
large body counts as stalled when a whole piece takes longer than the time-out.
"""

from __future__ import annotations

import socket
from typing import Protocol

_PIECE = 400 * 1024
_WORTH_IT = 128 * 1024


class _Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


class LowWater:
    """Of one connection without TLS: what the kernel counts must be what is left of the body."""

    __slots__ = ("_level", "_socket")

    def __init__(self, sock: _Socket) -> None:
        self._socket = sock
        self._level = 1

    def expect(self, left: int) -> None:
        """`left` bytes of the body are to come. Never asks for more than that, or they would not be reported."""
        if left >= self._level > 1:
            return
        level = min(left, _PIECE) if left > _WORTH_IT else 1
        if level != self._level:
            self._level = level
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, level)
