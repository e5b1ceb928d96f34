"""Which GPUs each worker sees. Pure, and without asking CUDA: device nodes and `CUDA_VISIBLE_DEVICES` say enough."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sgl_epd.errors import ConfigError
from sgl_epd.worker.flags import given, value

_TP_FLAGS = ("--tp-size", "--tp", "--tensor-parallel-size")
_PP_FLAGS = ("--pp-size", "--pp", "--pipeline-parallel-size")
_DP_FLAGS = ("--dp-size", "--dp", "--data-parallel-size")


def visible_gpus(environ: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs that a worker started now would see, as it would name them."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return tuple(part.strip() for part in environ["CUDA_VISIBLE_DEVICES"].split(",") if part.strip())
    count = sum(1 for node in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name))
    return tuple(str(index) for index in range(count))


def gpus_needed(args: Sequence[str]) -> int:
    """How many GPUs one worker with these SGLang flags uses."""
    ranks = _size(args, _TP_FLAGS) * _size(args, _PP_FLAGS)
    # With DP attention the replicas share the tensor-parallel group; else each has its own.
    return ranks if given(args, "--enable-dp-attention") else ranks * _size(args, _DP_FLAGS)


def _size(args: Sequence[str], flags: tuple[str, ...]) -> int:
    text = value(args, *flags)
    if text is None:
        return 1
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{flags[0]} {text}: expected a number of at least 1")
    return int(text)


def assign(needs: Sequence[int], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """GPUs of each worker, in turn. Workers share GPUs only if there are too few.

    Raises `ConfigError` if a single worker needs more than there are.
    """
    if not gpus:
        return [() for _ in needs]
    result = []
    first = 0
    for need in needs:
        if need > len(gpus):
            raise ConfigError(f"a worker needs {need} GPUs and this machine shows {len(gpus)}")
        result.append(tuple(gpus[(first + offset) % len(gpus)] for offset in range(need)))
        first += need
    return result


def shared(assignment: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """GPU -> names of its workers, for those GPUs that have several."""
    users: dict[str, list[str]] = {}
    for name, gpus in assignment.items():
        for gpu in gpus:
            users.setdefault(gpu, []).append(name)
    return {gpu: names for gpu, names in users.items() if len(names) > 1}
