"""A host for each test, and signals as a shell would hand them on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_process import Host

# Started under nohup, a test run hands an ignored SIGHUP on to what it starts, and a hang-up would end nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.destroy()
