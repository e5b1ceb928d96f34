from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sgl_kernel import copy_all_layer_kv_cache_cpu  # noqa: E402 - needs torch

SLOTS = 12


def addresses(buffers: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)


def row_bytes(buffers: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers])


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Distinct targets; sources that may repeat and overlap them."""
    targets = draw(st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS))
    sources = draw(st.lists(st.integers(0, SLOTS - 1), min_size=len(targets), max_size=len(targets)))
    return targets, sources


@given(moves(), st.sampled_from([torch.int32, torch.int64]))
def test_moves_rows_in_every_buffer(move: tuple[list[int], list[int]], index_type: torch.dtype) -> None:
    targets, sources = move
    # Layers may differ in type and in row size.
    buffers = [
        torch.arange(SLOTS * 6, dtype=torch.float32).view(SLOTS, 2, 3),
        torch.arange(SLOTS * 2, dtype=torch.bfloat16).view(SLOTS, 2) + 1,
        torch.arange(SLOTS, dtype=torch.uint8).view(SLOTS, 1),
    ]
    expected = [buffer.tolist() for buffer in buffers]
    before = [buffer.tolist() for buffer in buffers]
    for rows, old in zip(expected, before, strict=True):
        for target, source in zip(targets, sources, strict=True):
            rows[target] = old[source]

    copy_all_layer_kv_cache_cpu(
        addresses(buffers),
        row_bytes(buffers),
        torch.tensor(targets, dtype=index_type),
        torch.tensor(sources, dtype=index_type),
    )
    assert [buffer.tolist() for buffer in buffers] == expected
