"""Bytes that have arrived on a server connection and are not consumed yet."""

from __future__ import annotations

_HEAD_END = b"\r\n\r\n"


class PendingBytes:
    """Pipelined requests are consumed from it by offset, so that a burst of them is not copied again and again."""

    __slots__ = ("_at", "_data", "_scanned")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._scanned = 0
        """How many of the bytes are known to hold no end of a head."""

    def __len__(self) -> int:
        return len(self._data) - self._at

    def append(self, data: memoryview | bytes) -> None:
        rest = self._data[self._at :]
        self._data = rest + data if rest else bytes(data)
        self._at = 0

    def take_head(self) -> bytes | None:
        """A complete head with its empty line, or None if there is none yet."""
        data, start = self._data, self._at
        while data.startswith(b"\r\n", start):  # empty lines before a request are to be ignored (RFC 9112, 2.2)
            start += 2
        end = data.find(_HEAD_END, max(start, self._at + self._scanned - len(_HEAD_END) + 1))
        if end < 0:
            self._scanned = len(self)
            return None
        self._scanned = 0
        self._at = end + len(_HEAD_END)
        return data[start : self._at]

    def take(self, length: int) -> bytes:
        data = self._data[self._at : self._at + length]
        self._at += len(data)
        return data

    def clear(self) -> None:
        self._data = b""
        self._at = self._scanned = 0
