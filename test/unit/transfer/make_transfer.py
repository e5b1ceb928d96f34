"""Transfers that reach other processes. Imports little: every target process starts with it."""

from __future__ import annotations

import hashlib
from typing import Any

from sgl_epd.transfer.base import Transfer

STALL_S = 1
"""After so long without progress every backend has given up a peer that does not move."""


def make(backend: str) -> Transfer[Any]:
    if backend == "shm":
        from sgl_epd.transfer.shm import ShmTransfer

        return ShmTransfer()
    if backend == "zmq":
        from sgl_epd.transfer.zmq import ZmqTransfer

        return ZmqTransfer()
    from sgl_epd.transfer.mooncake import MooncakeConfig, MooncakeTransfer

    return MooncakeTransfer(MooncakeConfig(protocol="tcp", stall_timeout_s=STALL_S))


def digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
