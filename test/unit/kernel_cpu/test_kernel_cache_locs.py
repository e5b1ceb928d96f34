"""Each operation against loops over Python lists that follow the comments of SGLang's Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sgl_kernel import cache_locs  # noqa: E402 - needs torch

ROWS, WIDTH = 6, 24
UNTOUCHED = -7


@dataclass(frozen=True)
class Slices:
    """Requests (rows of the table, each once) with a range of columns each."""

    requests: list[int]
    starts: list[int]
    ends: list[int]

    @property
    def total(self) -> int:
        return sum(self.ends) - sum(self.starts)


@st.composite
def slices(draw: st.DrawFn) -> Slices:
    requests = draw(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS))
    ranges = [sorted(draw(st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH)))) for _ in requests]
    return Slices(requests, [start for start, _ in ranges], [end for _, end in ranges])


def table() -> torch.Tensor:
    """A req_to_token table in which every entry is different."""
    return torch.arange(ROWS * WIDTH, dtype=torch.int32).view(ROWS, WIDTH)


def integers(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


INDEX_TYPES = st.sampled_from([torch.int32, torch.int64])


@given(slices(), INDEX_TYPES)
def test_assign_req_to_token_pool(batch: Slices, dtype: torch.dtype) -> None:
    slots = [1000 + i for i in range(batch.total)]
    expected, left = table().tolist(), iter(slots)
    for request, start, end in zip(batch.requests, batch.starts, batch.ends, strict=True):
        for column in range(start, end):
            expected[request][column] = next(left)

    result = table()
    cache_locs.assign_req_to_token_pool_cpu(
        integers(batch.requests, dtype),
        result,
        integers(batch.starts, dtype),
        integers(batch.ends, dtype),
        integers([*slots, 5, 5]),  # longer than needed: the rest is not used
        WIDTH,
    )
    assert result.tolist() == expected


@given(slices(), INDEX_TYPES)
def test_assign_extend_cache_locs(batch: Slices, dtype: torch.dtype) -> None:
    rows = table().tolist()
    expected = [
        slot
        for request, start, end in zip(batch.requests, batch.starts, batch.ends, strict=True)
        for slot in rows[request][start:end]
    ]

    out = integers([UNTOUCHED] * (batch.total + 2))
    cache_locs.assign_extend_cache_locs_cpu(
        integers(batch.requests, dtype),
        table(),
        integers(batch.starts, dtype),
        integers(batch.ends, dtype),
        out,
        WIDTH,
    )
    assert out.tolist() == [*expected, UNTOUCHED, UNTOUCHED]


@given(slices(), INDEX_TYPES)
def test_what_was_assigned_is_what_is_read(batch: Slices, dtype: torch.dtype) -> None:
    arguments = [integers(batch.requests, dtype), table(), integers(batch.starts, dtype), integers(batch.ends, dtype)]
    slots = torch.arange(batch.total) + 500
    out = torch.zeros(batch.total, dtype=torch.int64)
    cache_locs.assign_req_to_token_pool_cpu(*arguments, slots, WIDTH)
    cache_locs.assign_extend_cache_locs_cpu(*arguments, out, WIDTH)
    assert out.tolist() == slots.tolist()


@given(slices(), st.integers(1, 3), st.integers(1, 4))
def test_assign_draft_cache_locs_contiguous(batch: Slices, topk: int, steps: int) -> None:
    seq_lens = [min(start, WIDTH - topk * steps) for start in batch.starts]
    rows = table().tolist()
    expected = [
        slot
        for request, length in zip(batch.requests, seq_lens, strict=True)
        for slot in rows[request][length : length + topk * steps]
    ]

    out = integers([UNTOUCHED] * len(expected))
    cache_locs.assign_draft_cache_locs_contiguous_cpu(
        integers(batch.requests), table(), integers(seq_lens), out, WIDTH, topk, steps
    )
    assert out.tolist() == expected


@given(st.lists(st.integers(1, 5), max_size=6))
def test_fill_bonus_tokens(lengths: list[int]) -> None:
    tokens = torch.arange(len(lengths) * 5).view(-1, 5)
    bonus = torch.zeros(len(lengths), dtype=torch.int64)
    cache_locs.fill_bonus_tokens_cpu(tokens, integers(lengths), bonus, 5)
    assert bonus.tolist() == [tokens.tolist()[i][length - 1] for i, length in enumerate(lengths)]


@given(st.lists(st.booleans(), max_size=12))
def test_fill_accept_out_cache_loc(accepted: list[bool]) -> None:
    index = [i if yes else -1 for i, yes in enumerate(accepted)]
    slots = [100 + i for i in range(len(accepted))]
    packed = [slots[i] for i in index if i != -1]

    out = integers([UNTOUCHED] * len(accepted))
    cache_locs.fill_accept_out_cache_loc_cpu(integers(index), integers(slots), out)
    assert out.tolist() == packed + [UNTOUCHED] * (len(accepted) - len(packed))


@given(st.lists(st.integers(0, 6), max_size=5))
def test_rotate_input_ids(lengths: list[int]) -> None:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    ids = list(range(sum(lengths)))
    new = [900 + i for i in range(len(lengths))]
    expected: list[int] = []
    for start, length, token in zip(starts, lengths, new, strict=True):
        expected += [*ids[start + 1 : start + length], token] if length else []

    result = integers(ids)
    cache_locs.rotate_input_ids_cpu(result, integers(starts), integers(lengths), integers(new))
    assert result.tolist() == expected


def test_rotate_input_ids_with_the_place_of_the_new_token_given() -> None:
    result = integers([1, 2, 3, 4, 5])
    # Two requests of 3 and 2 tokens; the first one's token goes to position 1, past which lies padding.
    cache_locs.rotate_input_ids_cpu(result, integers([0, 3]), integers([3, 2]), integers([91, 92]), integers([1, 4]))
    assert result.tolist() == [2, 91, 3, 5, 92]
