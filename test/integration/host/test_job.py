"""A job beside a serving host: its end is the host's end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from host_process import Host

SCRIPT = Path(__file__).with_name("job_host.py")


def start(host: Host, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("JOB", what)
    host.program = (str(SCRIPT),)
    host.start(pools=("--prefill", "1", "--decode", "1"))
    host.wait_for("job begins")


@pytest.mark.parametrize("code", [0, 5])
def test_the_jobs_exit_code_is_the_hosts(host: Host, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    start(host, monkeypatch, str(code))
    assert host.exit_code() == code
    host.assert_nothing_left()


def test_a_broken_job_ends_the_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start(host, monkeypatch, "fails")
    assert host.exit_code() == 1
    assert "RuntimeError: the job is broken" in host.output
    host.assert_nothing_left()


def test_interrupting_a_job(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start(host, monkeypatch, "hangs")
    host.signal(signal.SIGINT)
    assert host.exit_code() == 130
    host.assert_nothing_left()


def test_a_job_may_leave_the_host_serving(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start(host, monkeypatch, "stays")
    assert host.status()["phase"] == "serving"
    host.signal(signal.SIGTERM)
    assert host.exit_code() == 0
    host.assert_nothing_left()
