"""Runs SGLang's own Triton kernels beside the stand-in's operations and exits with an error at the first difference.

Not a test module: `test_kernel_upstream.py` starts it with `TRITON_INTERPRET=1`, which must be set before Triton is
imported, and then Triton runs the kernels on the CPU. Usage: `upstream_triton.py ROUNDS`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import sgl_kernel
import torch
from sglang.kernels.ops.kvcache import cache_move
from sglang.kernels.ops.speculative import cache_locs, eagle, multi_layer_eagle
from sglang.srt.mem_cache import allocation

ROWS, WIDTH = 8, 200


def same(start: torch.Tensor, theirs: Callable[[torch.Tensor], object], ours: Callable[[torch.Tensor], object]) -> None:
    """Both write into copies of `start`, which must end up equal."""
    expected, result = start.clone(), start.clone()
    theirs(expected)
    ours(result)
    assert torch.equal(expected, result), f"{expected.tolist()} != {result.tolist()}"


def power_of_two_from(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def table_slices(batch: int) -> None:
    table = torch.randint(0, 9999, (ROWS, WIDTH), dtype=torch.int32)
    rows = torch.randperm(ROWS)[:batch]
    start = torch.randint(0, 80, (batch,))
    end = start + torch.randint(0, 100, (batch,))
    slots = torch.randint(0, 9999, (int((end - start).sum()) + 3,))
    upper = power_of_two_from(batch)
    same(
        table,
        lambda t: allocation.assign_req_to_token_pool[(batch,)](rows, t, start, end, slots, WIDTH, upper),
        lambda t: sgl_kernel.assign_req_to_token_pool_cpu(rows, t, start, end, slots, WIDTH),
    )
    same(
        torch.full_like(slots, -7),
        lambda out: cache_locs.assign_extend_cache_locs[(batch,)](rows, table, start, end, out, WIDTH, upper),
        lambda out: sgl_kernel.assign_extend_cache_locs_cpu(rows, table, start, end, out, WIDTH),
    )
    same(
        torch.full((batch * 6,), -7),
        lambda out: cache_locs.assign_draft_cache_locs_contiguous[(batch,)](rows, table, start, out, WIDTH, 2, 3),
        lambda out: sgl_kernel.assign_draft_cache_locs_contiguous_cpu(rows, table, start, out, WIDTH, 2, 3),
    )


def accepted_tokens(batch: int, width: int = 4) -> None:
    tokens, lengths = torch.randint(0, 999, (batch, width)), torch.randint(1, width + 1, (batch,))
    same(
        torch.zeros(batch, dtype=torch.int64),
        lambda out: eagle.fill_bonus_tokens[(batch,)](tokens, lengths, out, width),
        lambda out: sgl_kernel.fill_bonus_tokens_cpu(tokens, lengths, out, width),
    )
    count = batch * width
    index = torch.arange(count).masked_fill(torch.rand(count) < 0.4, -1)
    slots = torch.randint(0, 999, (count,))
    upper = power_of_two_from(count)
    same(
        torch.full((count,), -7),
        lambda out: eagle.fill_accept_out_cache_loc[(count,)](index, slots, out, upper),
        lambda out: sgl_kernel.fill_accept_out_cache_loc_cpu(index, slots, out),
    )


def rotated_ids(batch: int) -> None:
    lengths = torch.randint(0, 30, (batch,))
    starts = lengths.cumsum(0) - lengths
    ids, new = torch.randint(0, 999, (int(lengths.sum()) + 1,)), torch.randint(1000, 2000, (batch,))
    for place in (None, starts + (lengths - 2).clamp(min=0)):
        kernel = multi_layer_eagle.rotate_input_ids_kernel[(batch,)]
        same(
            ids,
            lambda t, kernel=kernel, place=place: kernel(t, starts, lengths, new, place, BLOCK_SIZE=64),
            lambda t, place=place: sgl_kernel.rotate_input_ids_cpu(t, starts, lengths, new, place),
        )


def moved_cache(count: int, slots: int = 50, layers: int = 3) -> None:
    target, source = torch.randperm(slots)[:count], torch.randint(0, slots, (count,))
    cache = torch.rand(layers, slots, 2, 8)
    row_bytes = torch.full((layers,), cache[0, 0].nbytes)

    def addresses(t: torch.Tensor) -> torch.Tensor:
        return torch.tensor([layer.data_ptr() for layer in t], dtype=torch.uint64)

    upper = power_of_two_from(count)
    kernel = cache_move.copy_all_layer_kv_cache_tiled[(layers, 1)]
    same(
        cache,
        lambda t: kernel(addresses(t), row_bytes, target, source, count, upper, BYTES_PER_TILE=128),
        lambda t: sgl_kernel.copy_all_layer_kv_cache_cpu(addresses(t), row_bytes, target, source),
    )


def main(rounds: int) -> None:
    random.seed(0)
    torch.manual_seed(0)
    for _ in range(rounds):
        batch = random.randint(1, 5)
        table_slices(batch)
        accepted_tokens(batch)
        rotated_ids(batch)
        moved_cache(random.randint(1, 20))
    print(f"{rounds} rounds equal")


if __name__ == "__main__":
    main(int(sys.argv[1]))
