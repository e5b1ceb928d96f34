"""Server-sent events on their way through: only complete events are passed on.

So that, when a worker dies in the middle of an event, the client gets whole events, then an error event, and never a
`[DONE]` that would make half an answer look like a whole one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sgl_epd_router.verdict import Verdict

DONE = b"data: [DONE]\n\n"
_END = b"\n\n"
_CRLF_END = b"\r\n\r\n"


class EventSplitter:
    """Cuts a byte stream behind its last complete event."""

    __slots__ = ("tail",)

    def __init__(self) -> None:
        self.tail = b""
        """The beginning of an event that is not complete yet."""

    def feed(self, data: bytes) -> bytes:
        """The complete events so far; usually `data` itself, as workers write whole events."""
        if self.tail:
            data = self.tail + data
            self.tail = b""
        if data.endswith(_END):
            return data
        end = max(_behind(data, _END), _behind(data, _CRLF_END))
        self.tail = data[end:]
        return data[:end]


def _behind(data: bytes, mark: bytes) -> int:
    at = data.rfind(mark)
    return at + len(mark) if at >= 0 else 0


def error_event(verdict: Verdict) -> bytes:
    """The last event of a stream that failed; its body is an error in OpenAI's format."""
    return b"data: " + verdict.body + _END


def responses_error_event(verdict: Verdict) -> bytes:
    """The same for `/v1/responses`, whose events have a type."""
    error = msgspec.json.decode(verdict.body, type=_ErrorBody).error
    event = {"type": "error", "message": error.get("message"), "code": error.get("code"), "param": None, "error": error}
    return b"event: error\ndata: " + msgspec.json.encode(event) + _END


class _ErrorBody(msgspec.Struct):
    error: dict[str, Any]
