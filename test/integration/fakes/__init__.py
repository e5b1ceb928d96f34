"""Fake SGLang workers on real sockets, with scripted faults. See `worker.py`."""

from .encoder import FakeEncoder
from .faults import (
    BEFORE_HEAD,
    AbortReason,
    Close,
    Die,
    Fault,
    Garbage,
    Gate,
    HalfClose,
    Hang,
    Reset,
    Status,
    WrongLength,
)
from .kv import KvFabric
from .worker import FakeWorker, Received

__all__ = [
    "BEFORE_HEAD",
    "AbortReason",
    "Close",
    "Die",
    "FakeEncoder",
    "FakeWorker",
    "Fault",
    "Garbage",
    "Gate",
    "HalfClose",
    "Hang",
    "KvFabric",
    "Received",
    "Reset",
    "Status",
    "WrongLength",
]
