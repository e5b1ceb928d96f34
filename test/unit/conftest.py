"""Ends the test process without running native destructors.

torch, Triton's interpreter, gRPC and Mooncake in one process crash in each other's destructors at exit, after all
results have been reported. Servers never hold that mix; a test session does.
"""

from __future__ import annotations

import os
import sys

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    status = config.stash.get(_STATUS, None)
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


_STATUS = pytest.StashKey[int]()
