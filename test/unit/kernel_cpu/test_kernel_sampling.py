from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from murmur_reference import murmur3_32, sampling_hash

torch = pytest.importorskip("torch")

from sgl_kernel import sampling  # noqa: E402 - needs torch

SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**31 - 1)
COLUMNS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


def hash_of(seeds: list[int], positions: list[int], columns: list[int]) -> list[list[int]]:
    """As SGLang's sampler calls it: seeds turned into uint64."""
    seed = torch.tensor(seeds, dtype=torch.int64).to(torch.uint64)
    out = torch.ops.sgl_kernel.murmur_hash32_cpu.default(seed, torch.tensor(positions), torch.tensor(columns))
    assert out.dtype == torch.uint32
    return out.tolist()


@pytest.mark.parametrize(
    ("data", "value"),
    # Test vectors in wide circulation, e.g. in Wikipedia's article on MurmurHash.
    [(b"", 0), (b"Hello, world!", 0xC0363E43), (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723)],
)
def test_the_reference_is_murmur3(data: bytes, value: int) -> None:
    assert murmur3_32(data) == value


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=4), COLUMNS)
def test_equals_the_reference(rows: list[tuple[int, int]], columns: list[int]) -> None:
    seeds, positions = [seed for seed, _ in rows], [position for _, position in rows]
    expected = [[sampling_hash(seed, position, column) for column in columns] for seed, position in rows]
    assert hash_of(seeds, positions, columns) == expected


def test_upper_half_of_the_seed_counts() -> None:
    low, high = hash_of([7, 7 + 2**32], [0, 0], [0])
    assert low != high


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32])
def test_any_integer_type_of_positions_and_columns(dtype: torch.dtype) -> None:
    seed, index = torch.tensor([-5]), torch.tensor([3], dtype=dtype)
    assert sampling.murmur_hash32_cpu(seed, index, index).tolist() == [[sampling_hash(-5, 3, 3)]]


def test_inputs_stay_as_they_were() -> None:
    seed, positions, columns = torch.tensor([1]), torch.tensor([2]), torch.arange(3)
    sampling.murmur_hash32_cpu(seed, positions, columns)
    assert (seed.tolist(), positions.tolist(), columns.tolist()) == ([1], [2], [0, 1, 2])


def test_empty_batch_and_empty_row() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    assert sampling.murmur_hash32_cpu(empty, empty, torch.arange(5)).shape == (0, 5)
    assert sampling.murmur_hash32_cpu(torch.tensor([1]), torch.tensor([1]), empty).shape == (1, 0)


def test_is_a_well_formed_torch_operation() -> None:
    seed = torch.tensor([1, 2], dtype=torch.int64).to(torch.uint64)
    torch.library.opcheck(
        torch.ops.sgl_kernel.murmur_hash32_cpu.default,
        (seed, torch.tensor([3, 4]), torch.arange(5)),
        test_utils=("test_schema", "test_faketensor"),
    )


UPSTREAM = """
import importlib.util, json, sys, torch
spec = importlib.util.spec_from_file_location("murmur_hash", sys.argv[1])
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)
seeds, positions, width = json.loads(sys.argv[2])
out = torch.empty((len(seeds), width), dtype=torch.uint32)
upstream.murmur_hash32_kernel[(len(seeds), 1)](
    torch.tensor(seeds, dtype=torch.int64).to(torch.uint64), torch.tensor(positions), torch.arange(width),
    out, len(seeds), width, BLOCK_SIZE=1024,
)
print(json.dumps(out.tolist()))
"""


def test_equals_upstreams_triton_kernel() -> None:
    """SGLang's own kernel, run by Triton's interpreter."""
    sglang = importlib.util.find_spec("sglang")
    if sglang is None or sglang.origin is None or importlib.util.find_spec("triton") is None:
        pytest.skip("needs SGLang and Triton")
    source = Path(sglang.origin).parent / "kernels" / "ops" / "sampling" / "murmur_hash.py"
    seeds, positions, width = [0, 42, -5, 2**62 + 3], [0, 1, 99, 32767], 320
    run = subprocess.run(
        [sys.executable, "-c", UPSTREAM, str(source), json.dumps([seeds, positions, width])],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert hash_of(seeds, positions, list(range(width))) == json.loads(run.stdout)
