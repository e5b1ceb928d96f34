"""Ready-made answers: JSON, text, and errors in OpenAI's format."""

from __future__ import annotations

from typing import Any

import msgspec

from sgl_epd.errors import RequestError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import RawHeaders

JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]
TEXT_HEADERS: RawHeaders = [(b"content-type", b"text/plain; charset=utf-8")]


def respond_json(exchange: Exchange, value: Any, status: int = 200, headers: RawHeaders | None = None) -> None:
    exchange.respond(status, msgspec.json.encode(value), JSON_HEADERS + (headers or []))


def respond_text(exchange: Exchange, text: str, status: int = 200) -> None:
    exchange.respond(status, text.encode("utf-8"), TEXT_HEADERS)


def respond_error(exchange: Exchange, error: RequestError, headers: RawHeaders | None = None) -> None:
    """Answer with `error`; after the answer has been started the connection is broken instead.

    A client that got half an answer must not take it for a whole one.
    """
    if not exchange.open:
        return
    if exchange.started:
        exchange.abort()
        return
    extra = list(headers or [])
    if error.retry_after_s is not None:
        extra.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    respond_json(exchange, error.to_openai(), error.status, extra)
