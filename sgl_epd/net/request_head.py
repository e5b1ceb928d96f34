"""The head of a request: parsed by llhttp, then checked for what could be read in two ways.

A request whose length two servers understand differently lets one client smuggle a request into another's connection.
So everything that is ambiguous is refused, not repaired.
"""

from __future__ import annotations

import httptools

from sgl_epd.errors import BadRequestError, RequestError
from sgl_epd.net.headers import RawHeaders

CHUNKED = -1
_MAX_LENGTH_DIGITS = 18


class NotImplementedByServerError(RequestError):
    status = 501
    error_type = "NotImplementedError"


class RequestHead:
    """Parses in its constructor. Raises `BadRequestError` (400) or `NotImplementedByServerError` (501)."""

    __slots__ = ("_parser", "body_length", "headers", "keep_alive", "method", "target", "version")

    def __init__(self, data: bytes) -> None:
        """`data` ends with the empty line."""
        self.headers: RawHeaders = []
        self.target = b""
        self.keep_alive = False
        self.version = ""
        self._parser = parser = httptools.HttpRequestParser(self)
        upgrade = False
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            upgrade = True  # an offer that may be ignored (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            raise BadRequestError(f"malformed request: {error}") from error
        if self.version not in ("1.0", "1.1"):
            raise BadRequestError("malformed request head, or neither HTTP/1.0 nor HTTP/1.1")
        self.method: str = parser.get_method().decode("ascii")
        self.body_length = self._body_length(upgrade)
        del self._parser  # it refers back to this object

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        # Asked later, the parser would speak of the next request.
        self.version = self._parser.get_http_version()
        self.keep_alive = self._parser.should_keep_alive()

    def _body_length(self, upgrade: bool) -> int:
        length: bytes | None = None
        coding: bytes | None = None
        hosts = 0
        for name, value in self.headers:
            if name == b"content-length":
                if length is not None:
                    raise BadRequestError("more than one Content-Length")
                length = value
            elif name == b"transfer-encoding":
                if coding is not None:
                    raise BadRequestError("more than one Transfer-Encoding")
                coding = value
            elif name == b"host":
                hosts += 1
        if hosts > 1 or (hosts == 0 and self.version == "1.1"):
            raise BadRequestError("exactly one Host field is required")
        if coding is not None:
            if length is not None or self.version != "1.1":
                raise BadRequestError("Transfer-Encoding beside Content-Length, or not in HTTP/1.1")
            if coding.strip().lower() != b"chunked" or upgrade:
                raise NotImplementedByServerError("the only transfer coding that is understood is chunked")
            return CHUNKED
        if length is None:
            return 0
        if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
            raise BadRequestError("invalid Content-Length")
        return int(length)
