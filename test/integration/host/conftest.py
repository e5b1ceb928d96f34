from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from host_process import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.destroy()
