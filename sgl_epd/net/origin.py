"""Where requests go: scheme, host and port of a server, and the idle connections to it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from sgl_epd.net.client_connection import ClientConnection


class Origin:
    """`idle` has the freshest connection on the right.

    `path` is what stands before every target when the server lives below a prefix, else empty.
    """

    __slots__ = ("host", "host_header", "idle", "path", "port", "scheme", "url")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// URL")
        self.scheme = parts.scheme
        self.host = parts.hostname
        self.port = parts.port or (443 if self.scheme == "https" else 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.host_header = f"{host}:{self.port}".encode("ascii")
        self.path = parts.path.rstrip("/")
        self.url = f"{self.scheme}://{host}:{self.port}{self.path}"
        self.idle: deque[ClientConnection] = deque()
