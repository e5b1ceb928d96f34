from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sgl_kernel import threads  # noqa: E402 - needs torch


@pytest.mark.parametrize(
    ("cpu_list", "ids"), [("0", {0}), ("0-2", {0, 1, 2}), ("1,3", {1, 3}), ("0-1,4, 6-7", {0, 1, 4, 6, 7})]
)
def test_cpu_lists(cpu_list: str, ids: set[int]) -> None:
    assert threads._cpu_ids(cpu_list) == ids


BIND = """
import os, sys, torch, sgl_kernel
torch.ops.sgl_kernel.init_cpu_threads_env(sys.argv[1])
print(sorted(os.sched_getaffinity(0)), torch.get_num_threads())
"""


def test_binds_this_process_and_sizes_torchs_pool(package_root: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    run = subprocess.run(
        [sys.executable, "-c", BIND, str(cpu)],
        env={**os.environ, "PYTHONPATH": str(package_root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.split("\n")[0] == f"[{cpu}] 1"


def test_several_ranks_have_no_shared_memory_all_reduce() -> None:
    torch.ops.sgl_kernel.initialize(1, 0)
    with pytest.raises(NotImplementedError, match="initialize"):
        torch.ops.sgl_kernel.initialize(2, 0)
