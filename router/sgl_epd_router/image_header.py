"""Width and height of an image out of its first bytes, without decoding it: PNG, JPEG, GIF, WebP, BMP."""

from __future__ import annotations

import struct

Size = tuple[int, int]

NEED_MORE = (0, 0)
"""The format is known, but the size stands further on in the file."""

_JPEG_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_size(data: bytes) -> Size | None:
    """(width, height), `NEED_MORE` when `data` is too short to tell, None when it is no image that we know."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return struct.unpack_from(">II", data, 16)
        if data.startswith(b"\xff\xd8"):
            return _jpeg_size(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return struct.unpack_from("<HH", data, 6)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp_size(data)
        if data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
            return width, abs(height)
    except (struct.error, IndexError):
        return NEED_MORE
    return None


def _jpeg_size(data: bytes) -> Size | None:
    """Walk the segments up to the frame header (SOFn); thumbnails inside EXIF are skipped with their segment."""
    at = 2
    while True:
        if data[at] != 0xFF:
            return None
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in _JPEG_STANDALONE:
            continue
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height
        if marker in (0xD9, 0xDA):
            return None
        at += struct.unpack_from(">H", data, at)[0]


def _webp_size(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return (width, height) if len(data) >= 30 else NEED_MORE
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return NEED_MORE if len(kind) < 4 else None
