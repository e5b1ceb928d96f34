"""The operations on tables and caches do what SGLang's own Triton kernels do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not (importlib.util.find_spec("sglang") and importlib.util.find_spec("triton")), reason="needs SGLang and Triton"
)
def test_equal_to_upstreams_triton_kernels(package_root: Path) -> None:
    script = Path(__file__).with_name("upstream_triton.py")
    run = subprocess.run(
        [sys.executable, str(script), "20"],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "PYTHONPATH": str(package_root),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "20 rounds equal"
