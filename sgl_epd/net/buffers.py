"""Buffers for bodies of megabytes."""

from __future__ import annotations

import ctypes

_new = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_new.restype = ctypes.py_object


def uninitialized(length: int) -> bytearray:
    """A bytearray that is about to be overwritten in full: `bytearray(length)` would write it twice.

    CPython's C API leaves the contents undefined when it is given no source, so nothing of it may be shown before it
    has been filled.
    """
    buffer: bytearray = _new(None, length)
    return buffer
