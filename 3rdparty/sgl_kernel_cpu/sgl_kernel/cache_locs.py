"""Reads and writes of ragged slices in the request-to-token table.

Every operation here walks a batch of (row, first column, length) slices of the table and a flat list of KV slots laid
out one request after the other. Call sites in SGLang 0.5.23: `srt/mem_cache/allocation.py` and
`kernels/ops/speculative/{cache_locs,eagle,multi_layer_eagle}.py`, whose Triton kernels define the semantics.
The widths and strides that the call sites pass are those of contiguous tensors; torch knows them already.
"""

from __future__ import annotations

import torch


def _ragged(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each element of the concatenated slices: which slice it belongs to, and its column."""
    lengths = lengths.to(torch.int64)
    owner = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    first = lengths.cumsum(0) - lengths
    column = torch.arange(owner.numel()) + (starts.to(torch.int64) - first)[owner]
    return owner, column


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """`req_to_token[request, start:end] = ` the request's run of `out_cache_loc`, in place."""
    owner, column = _ragged(start_offset, end_offset - start_offset)
    slots = out_cache_loc[: owner.numel()].to(req_to_token.dtype)
    req_to_token[req_pool_indices[owner], column] = slots


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The inverse: the request's run of `out_cache_loc` = `req_to_token[request, start:end]`, in place."""
    owner, column = _ragged(start_offset, end_offset - start_offset)
    out_cache_loc[: owner.numel()] = req_to_token[req_pool_indices[owner], column].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """The request's `topk * steps` slots of `out_cache_loc` = `req_to_token[request, seq_len:]`, in place."""
    end = seq_lens + topk * speculative_num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, end, out_cache_loc, pool_len)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """`bonus_tokens[i]` = the last accepted token of request i, in place. Lengths are at least one."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.to(torch.int64) - 1
    bonus_tokens[: last.numel()] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Packs the slots of all accepted tokens (index not -1) to the front, in place."""
    index = accept_index.reshape(-1)
    slots = out_cache_loc[index[index >= 0].to(torch.int64)]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shifts each request's ids left by one and writes its new token at the end (or at `select_index`), in place."""
    _, column = _ragged(extend_start_loc, (extend_seq_lens - 1).clamp(min=0))
    input_ids[column] = input_ids[column + 1]
    some = extend_seq_lens > 0
    last = extend_start_loc + extend_seq_lens - 1 if select_index is None else select_index
    input_ids[last[some].to(torch.int64)] = topk_index.reshape(-1)[some].to(input_ids.dtype)
