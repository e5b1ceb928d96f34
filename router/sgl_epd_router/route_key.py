"""What a policy may know about a request. Made once a request by the body scan, read by every policy."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class MediaKey:
    """One image, video or audio item of a request."""

    content_hash: bytes
    """At least 16 bytes; of the data, or of the URL string."""
    offset: int = 0
    """Where in `RouteKey.text` the item stands (as if it were inserted before this byte)."""
    tokens: int = 0
    patches: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class RouteKey:
    """`text` holds the prompt's bytes in order without the media; media carry their place in it."""

    model: str | None = None
    text: bytes = b""
    media: tuple[MediaKey, ...] = ()
    prompt_tokens: int = 0
    """Estimated, text and media together."""
    patches: int = 0
    routing_key: str | None = None
    """What the client wants kept together (a session), from a header."""


EMPTY_KEY = RouteKey()
