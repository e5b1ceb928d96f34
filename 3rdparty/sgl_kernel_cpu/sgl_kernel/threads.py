"""Start-up calls that SGLang makes on arm64 CPUs (`srt/distributed/bootstrap.py`) even without the real kernels."""

from __future__ import annotations

import os

import torch

from ._missing import not_implemented


def _cpu_ids(cpu_list: str) -> set[int]:
    """`"0-3,8"` -> {0, 1, 2, 3, 8}, the notation of taskset."""
    ids: set[int] = set()
    for part in cpu_list.split(","):
        first, _, last = part.strip().partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return ids


def init_cpu_threads_env(cpu_ids: str) -> str:
    """Binds this process to the given CPUs and gives torch one thread for each. Returns what it did, in words."""
    ids = _cpu_ids(cpu_ids)
    os.sched_setaffinity(0, ids)
    torch.set_num_threads(len(ids))
    return f"{len(ids)} threads on CPUs {sorted(ids)}"


def initialize(size: int, rank: int) -> None:
    """Set-up of the shared-memory all-reduce, which a single rank does not need."""
    if size > 1:
        raise not_implemented("initialize (shared-memory all-reduce between tensor-parallel ranks)")
