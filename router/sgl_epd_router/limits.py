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


def parse_priority(value: bytes | None) -> int:
    """A request's `priority` field (as JSON) or `x-override-priority` header: larger is more urgent, as in SGLang."""
    if value is None or value in (b"", b"null"):
        return 0
    text = value.decode("latin-1").strip('"')
    try:
        return int(text)
    except ValueError:
        raise BadRequestError(f"priority must be a whole number, not {text[:40]!r}", param="priority") from None
