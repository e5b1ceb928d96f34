"""Moving tokens inside the KV cache.

SGLang hands the layers' buffers over as raw addresses (`srt/mem_cache/memory_pool.py`, `data_ptrs`), since its GPU
kernel takes them so. They are addresses in this process, which is why a view without a copy is possible here.
"""

from __future__ import annotations

import ctypes

import torch


def _rows_at(address: int, rows: int, row_bytes: int) -> torch.Tensor:
    memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """In every buffer, row `tgt_loc[i]` = row `src_loc[i]` as it was before the call.

    `data_ptrs`: first byte of each buffer; `strides`: bytes per row of each. The buffers must be alive and long enough.
    """
    if tgt_loc.numel() == 0:
        return
    target, source = tgt_loc.to(torch.int64), src_loc.to(torch.int64)
    rows = int(torch.maximum(target.max(), source.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        buffer = _rows_at(address, rows, row_bytes)
        # Indexing copies, so overlapping source and target rows are safe.
        buffer[target] = buffer[source]
