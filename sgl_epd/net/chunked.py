"""Decodes a chunked request body. Rare (clients know the length of a JSON body), so it may be copied on its way."""

from __future__ import annotations

import httptools

from sgl_epd.errors import BadRequestError

_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class ChunkedBody:
    """Feed it until `complete`. `excess`: bytes of a further request have been swallowed and are lost."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.excess = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    def feed(self, data: bytes | memoryview) -> None:
        """Raises `BadRequestError` when the framing is broken."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.complete:
                raise BadRequestError(f"malformed chunked body: {error}") from error
            self.excess = True

    def on_message_begin(self) -> None:
        if self.complete:
            self.excess = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = True
