"""Header fields as both sides of the connection see them: lower-case names, bytes, in order, duplicates kept."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

RawHeaders = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Fields that belong to one connection and must not be forwarded (RFC 9110, 7.6.1)."""


def get_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of `name` (given in lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The lower-case tokens of all `Connection` fields: names of further hop-by-hop fields, `close`, ..."""
    tokens: set[bytes] = set()
    for key, value in headers:
        if key == b"connection":
            tokens.update(part.strip().lower() for part in value.split(b","))
    return frozenset(tokens)


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header lines without the final empty line. Values come from parsed messages or from code, not from users."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def reason_phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Unknown"


_STATUS_LINES: dict[int, bytes] = {}


def status_line(status: int) -> bytes:
    line = _STATUS_LINES.get(status)
    if line is None:
        line = _STATUS_LINES[status] = b"HTTP/1.1 %d %b\r\n" % (status, reason_phrase(status))
    return line
