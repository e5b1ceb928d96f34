"""Makes the operations reachable as `torch.ops.sgl_kernel.<name>`.

Implemented ones are true torch operations, so that `.default`, `torch.compile` and fake tensors work; the others are
plain attributes that raise when called.
"""

from __future__ import annotations

import torch

from . import sampling, threads
from ._missing import TORCH_OPS, missing

_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def _hash_shape(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    return seed.new_empty((seed.shape[0], col_indices.shape[0]), dtype=torch.uint32)


def register() -> None:
    _library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
    _library.impl("murmur_hash32_cpu", sampling.murmur_hash32_cpu, "CPU")
    torch.library.register_fake("sgl_kernel::murmur_hash32_cpu", _hash_shape, lib=_library)
    _library.define("init_cpu_threads_env(str cpu_ids) -> str")
    _library.impl("init_cpu_threads_env", threads.init_cpu_threads_env, "CompositeExplicitAutograd")
    _library.define("initialize(int size, int rank) -> ()")
    _library.impl("initialize", threads.initialize, "CompositeExplicitAutograd")
    for name, op in missing(TORCH_OPS).items():
        setattr(torch.ops.sgl_kernel, name, op)
