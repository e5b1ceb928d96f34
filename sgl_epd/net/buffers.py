"""Buffers for bodies of megabytes."""

from __future__ import annotations

import ctypes

_new = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_new.restype = ctypes.py_object


# <malloc.h>, and the largest value that glibc takes for the second.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_FROM_HEAP = 32 * 2**20
_KEPT_FREE = 256 * 2**20


def keep_freed_memory() -> None:
    """Let the process keep up to 256 MiB of freed memory, for buffers of up to 32 MiB.

    By default glibc gives the memory of every large body back to the system and gets it again page by page: about 1 ms
    of page faults for 10 MiB. Does nothing where the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE)


def uninitialized(length: int) -> bytearray:
    """A bytearray that is about to be overwritten in full: `bytearray(length)` would write it twice.

    CPython's C API leaves the contents undefined when it is given no source, so nothing of it may be shown before it
    has been filled.
    """
    buffer: bytearray = _new(None, length)
    return buffer
