"""The media items of a request: what they are, a hash for affinity, and how much work they will be.

Items are views into the request body: an image of megabytes is hashed where it lies and only its first few KiB are
decoded, to read its dimensions.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import math

import msgspec
import xxhash

from sgl_epd_router.image_header import NEED_MORE, image_size
from sgl_epd_router.outline import WHOLE, Outline

PATCH_PIXELS = 14
"""Edge of a patch. Vision towers differ (14 to 16); load needs the right proportion, not the exact count."""
PATCHES_PER_TOKEN = 4
MAX_IMAGE_PATCHES = 65536
"""SGLang's `SGLANG_IMAGE_MAX_PIXELS` (16384 * 28 * 28) in patches: larger images are scaled down."""
UNKNOWN_IMAGE_PATCHES = 5476
"""Of an image whose size is not in the request (a URL): as much as 1024 x 1024."""
UNKNOWN_VIDEO_PATCHES = 32768
UNKNOWN_AUDIO_PATCHES = 1024

_HEADER_PEEKS = (1024, 64 * 1024, 1024 * 1024)
"""Base64 characters to decode in search of the size: some JPEGs carry large EXIF or ICC segments before it."""
_WHOLE_MARKER = b";base64,"


class Modality(enum.StrEnum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclasses.dataclass(frozen=True, slots=True)
class MediaItem:
    """One image, video or audio of a request, in the order of the prompt."""

    modality: Modality
    content_hash: bytes
    """128 bits: of the base64 text of a data URI, else of the URL. For routing, not for identity across clients."""
    width: int | None = None
    height: int | None = None
    offset: int = 0
    """Where it stands in the prompt's text (`RouteKey.text`), in bytes."""

    @property
    def patches(self) -> int:
        """Estimated patches for the vision tower."""
        if self.modality is Modality.VIDEO:
            return UNKNOWN_VIDEO_PATCHES
        if self.modality is Modality.AUDIO:
            return UNKNOWN_AUDIO_PATCHES
        if not self.width or not self.height:
            return UNKNOWN_IMAGE_PATCHES
        patches = math.ceil(self.width / PATCH_PIXELS) * math.ceil(self.height / PATCH_PIXELS)
        return min(max(patches, PATCHES_PER_TOKEN), MAX_IMAGE_PATCHES)

    @property
    def tokens(self) -> int:
        """Estimated tokens in the prompt."""
        return self.patches // PATCHES_PER_TOKEN


def media_item(modality: Modality, raw: msgspec.Raw, offset: int = 0, cut: Outline = WHOLE) -> MediaItem | None:
    """The item behind a JSON string (quotes included) that holds a URL, a data URI or base64; None for the rest."""
    view = memoryview(raw)
    if len(view) < 3 or view[0] != ord('"'):
        return None
    content = view[1:-1]
    start = _payload_start(content)
    payload = cut.resolve(content[start:]) if start else content
    digest = xxhash.xxh3_128_digest(payload)
    size = _size(payload) if modality is Modality.IMAGE and (start or _bare_base64(content)) else None
    width, height = size or (None, None)
    return MediaItem(modality, digest, width, height, offset)


def _payload_start(content: memoryview) -> int:
    """Where the base64 text of a data URI begins; 0 when it is none."""
    head = bytes(content[:128])
    if head[:5].lower() != b"data:":
        return 0
    at = head.find(_WHOLE_MARKER)
    return at + len(_WHOLE_MARKER) if at >= 0 else 0


def _bare_base64(content: memoryview) -> bool:
    """SGLang's /generate also takes base64 without a data URI around it."""
    return len(content) > 256 and b":" not in bytes(content[:16])


def _size(payload: memoryview) -> tuple[int, int] | None:
    for length in _HEADER_PEEKS:
        size = image_size(_decode_start(payload[:length]))
        if size is None:
            return None
        if size != NEED_MORE:
            return size
        if length >= len(payload):
            return None
    return None


def _decode_start(payload: memoryview) -> bytes:
    text = bytes(payload)
    if b"\\" in text:  # some JSON writers escape the slash
        text = text.replace(b"\\/", b"/")
    text = text.rstrip(b"=")
    try:
        return base64.b64decode(text[: len(text) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""
