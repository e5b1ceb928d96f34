"""Asking a process over HTTP whether it is well: all that supervision needs to know about it."""

from __future__ import annotations

import json
from typing import Any

from sgl_epd.errors import TransportError
from sgl_epd.net.client import ClientLimits, HttpClient


class Prober:
    """GET with a deadline. Must be made inside a running event loop; `close` it there."""

    def __init__(self) -> None:
        # A probe that finds an old connection closed would say nothing about the process: always connect anew.
        self._client = HttpClient(limits=ClientLimits(idle_timeout_s=0.0))

    async def get(self, url: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body; status 0 if there was no HTTP answer within `timeout_s`, whatever the reason."""
        try:
            reply = await self._client.fetch("GET", url, timeout_s=timeout_s)
        except (TransportError, TimeoutError):
            return 0, b""
        return reply.status, reply.body

    async def is_healthy(self, url: str, timeout_s: float) -> bool:
        status, _ = await self.get(url, timeout_s)
        return status == 200

    async def close(self) -> None:
        await self._client.close()


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object, or an empty one if it is not that."""
    try:
        loaded = json.loads(body)
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}
