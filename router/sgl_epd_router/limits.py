"""Limits on what one request may ask for, checked before any worker is bothered."""

from __future__ import annotations

from sgl_epd.errors import BadRequestError


def check_pixels(width: int, height: int, limit: int, param: str | None = None) -> None:
    """Refuse an image of more than `limit` pixels (0: no limit); its size comes from its header, undecoded."""
    if limit and width * height > limit:
        raise BadRequestError(
            f"the image has {width} x {height} pixels, more than the limit of {limit}",
            param=param,
            code="image_too_large",
        )


def parse_priority(value: object) -> int:
    """A request's `priority` field or `x-override-priority` header, as SGLang reads them: larger is more urgent."""
    if value is None:
        return 0
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    try:
        return int(text)
    except ValueError:
        raise BadRequestError(f"priority must be a whole number, not {text[:40]!r}", param="priority") from None
