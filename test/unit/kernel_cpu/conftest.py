"""Puts the stand-in's source tree first on the import path, so that these tests see it and not an installed copy."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

PACKAGE_ROOT = Path(__file__).resolve().parents[3] / "3rdparty" / "sgl_kernel_cpu"
sys.path.insert(0, str(PACKAGE_ROOT))


def _real_kernels() -> str | None:
    names = ("sglang-kernel", "sgl-kernel", "sglang-kernel-cpu")
    return next((name for name in names if any(importlib.metadata.distributions(name=name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = _real_kernels()
    if found is None:
        return
    skip = pytest.mark.skip(reason=f"the stand-in cannot be imported beside {found}")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture
def package_root() -> Path:
    return PACKAGE_ROOT
