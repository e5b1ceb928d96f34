"""Ending: whatever kills whatever, nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from host_process import LIMIT_S, Host, wait_until

CHILDREN = ("--worker-args", "--fake-children")
MARKED_WITH_CHILDREN = 3 * 3 + 1


def started_with_children(host: Host, *flags: str) -> None:
    host.start(*CHILDREN, *flags)
    host.wait_ready()
    wait_until(lambda: len(host.marked()) == MARKED_WITH_CHILDREN, "children of the workers")


def test_terminate_ends_children_that_left_the_session_too(host: Host) -> None:
    started_with_children(host)
    host.signal(signal.SIGTERM)
    assert host.exit_code() == 0
    host.assert_nothing_left()


def test_hangup(host: Host) -> None:
    started_with_children(host)
    host.signal(signal.SIGHUP)
    assert host.exit_code() == 0
    host.assert_nothing_left()


def test_serve_itself_is_killed(host: Host) -> None:
    started_with_children(host)
    host.signal(signal.SIGKILL)
    assert host.exit_code() == -signal.SIGKILL
    host.assert_nothing_left()
    assert host.status()["phase"] == "ended"


def test_the_supervisor_is_killed(host: Host) -> None:
    started_with_children(host)
    os.kill(host.supervisor_pid(), signal.SIGKILL)
    assert host.exit_code() == 128 + signal.SIGKILL
    assert "the supervisor was ended by SIGKILL" in host.output
    host.assert_nothing_left()


def test_serve_and_supervisor_are_killed_at_once(host: Host) -> None:
    host.start()
    host.wait_ready()
    os.kill(host.pid, signal.SIGSTOP)
    os.kill(host.supervisor_pid(), signal.SIGKILL)
    os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: not host.marked(), "the kernel ends the workers", 5.0)


def test_a_worker_that_ignores_sigterm_is_killed(host: Host) -> None:
    host.start("--prefill-args", "--fake-ignore-term", "--worker-grace-secs", "0.5")
    host.wait_ready()
    host.signal(signal.SIGTERM)
    assert host.exit_code() == 0
    assert "prefill-0 did not end within 0.5 s and had to be killed" in host.output
    host.assert_nothing_left()


def test_second_interrupt_does_not_wait(host: Host) -> None:
    host.start("--worker-args", "--fake-ignore-term", "--worker-grace-secs", "60", "--router-args", "--fake-drain 60")
    host.wait_ready()
    host.signal(signal.SIGINT)
    host.wait_for("Ctrl-C again: at once")
    begun_at = time.monotonic()
    host.signal(signal.SIGINT)
    assert host.exit_code() == 130
    assert time.monotonic() - begun_at < LIMIT_S
    host.assert_nothing_left()


def test_router_drains_before_the_workers_are_asked_to_end(host: Host) -> None:
    host.start("--router-args", "--fake-drain 0.7")
    host.wait_ready()
    host.signal(signal.SIGTERM)
    wait_until(lambda: "fake router ends" in (host.log_dir / "router.log").read_text(), "router asked to end")
    assert "ends" not in (host.log_dir / "decode-0.log").read_text()
    assert host.exit_code() == 0
    assert "fake decode ends" in (host.log_dir / "decode-0.log").read_text()


def test_shared_memory_of_a_killed_worker_is_unlinked(host: Host) -> None:
    segment = Path("/dev/shm") / host.mark
    host.start("--decode-args", f"--fake-shm {host.mark} --fake-ignore-term", "--worker-grace-secs", "0.2")
    host.wait_ready()
    assert segment.exists()
    host.signal(signal.SIGTERM)
    assert host.exit_code() == 0
    assert not segment.exists()


def test_shared_memory_that_others_use_stays(host: Host) -> None:
    segment = Path("/dev/shm") / host.mark
    host.start("--decode-args", f"--fake-shm {host.mark}", pools=("--prefill", "1", "--decode", "1"))
    host.wait_ready()
    with segment.open("rb"):
        host.signal(signal.SIGTERM)
        assert host.exit_code() == 0
        assert segment.exists()
    segment.unlink()
