"""Legs whose news a test sets by hand."""

from __future__ import annotations

import dataclasses

from sgl_epd.errors import TransportError
from sgl_epd.net.headers import RawHeaders
from sgl_epd_router.verdict import Verdict

JSON: RawHeaders = [(b"content-type", b"application/json")]
EVENTS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8")]
CHAT_EVENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclasses.dataclass
class FakeLeg:
    role: str
    status: int = 0
    headers: RawHeaders = dataclasses.field(default_factory=list)
    data: bytes = b""
    ended: bool = False
    error: TransportError | None = None
    verdict: Verdict | None = None

    @property
    def is_events(self) -> bool:
        return self.headers is EVENTS

    def take(self) -> bytes:
        data, self.data = self.data, b""
        return data

    def answers(self, body: bytes, status: int = 200, headers: RawHeaders = JSON) -> None:
        self.status, self.headers, self.data, self.ended = status, headers, body, True

    def streams(self, data: bytes, *, ended: bool = False) -> None:
        self.status, self.headers, self.ended = 200, EVENTS, ended
        self.data += data
