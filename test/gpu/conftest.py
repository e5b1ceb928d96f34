"""Everything here needs a GPU and is skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgl_epd.worker.machine import has_gpu

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("gpu")
            if not has_gpu():
                item.add_marker(pytest.mark.skip(reason="no GPU here"))
