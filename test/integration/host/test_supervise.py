"""Serving: dead and hung processes are replaced, hopeless ones are given up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from host_process import Host, wait_until

QUICK = ("--restart-backoff-secs", "0.1", "--health-check-interval-secs", "0.2")


def test_a_killed_worker_comes_back_on_the_same_port(host: Host) -> None:
    host.start(*QUICK)
    host.wait_ready()
    before = host.entry("encode-0")
    os.kill(before["pid"], signal.SIGKILL)
    host.wait_for("encode-0 was ended by SIGKILL and is started again in 0.1 s")
    host.wait_for("encode-0 is ready again")
    after = host.entry("encode-0")
    assert after["url"] == before["url"]
    assert after["pid"] != before["pid"]
    assert (after["restarts"], after["state"]) == (1, "ready")
    assert "serve: start number 2" in (host.log_dir / "encode-0.log").read_text()


def test_what_a_killed_worker_leaves_in_its_session_is_ended_before_the_restart(host: Host) -> None:
    host.start(*QUICK, "--encode-args", "--fake-children")
    host.wait_ready()
    wait_until(lambda: len(host.marked()) == 6, "children of the encoder")
    os.kill(host.entry("encode-0")["pid"], signal.SIGKILL)
    host.wait_for("encode-0 is ready again")
    # One child left the session and lives until the host ends.
    wait_until(lambda: len(host.marked()) == 7, "the orphan in the session is gone")
    host.signal(signal.SIGTERM)
    assert host.exit_code() == 0
    host.assert_nothing_left()


def test_a_killed_router_comes_back(host: Host) -> None:
    host.start(*QUICK)
    host.wait_ready()
    os.kill(host.entry("router")["pid"], signal.SIGKILL)
    host.wait_for("router is ready again")
    assert host.entry("router")["restarts"] == 1


def test_a_hung_worker_is_replaced(host: Host, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    flags = ("--health-check-timeout-secs", "0.2", "--unhealthy-restart-secs", "0.5", "--worker-grace-secs", "0.2")
    host.start(*QUICK, *flags, "--decode-args", f"--fake-hang-file {hang} --fake-ignore-term")
    host.wait_ready()
    before = host.entry("decode-0")["pid"]
    hang.touch()
    host.wait_for("decode-0 does not answer its health checks")
    host.wait_for("decode-0 has been unhealthy for too long and is replaced")
    host.wait_for("decode-0 was ended by SIGKILL")
    hang.unlink()
    host.wait_for("decode-0 is ready again")
    assert host.entry("decode-0")["pid"] != before


def test_a_short_hang_is_reported_and_forgiven(host: Host, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    host.start(*QUICK, "--health-check-timeout-secs", "0.2", "--decode-args", f"--fake-hang-file {hang}")
    host.wait_ready()
    hang.touch()
    host.wait_for("decode-0 does not answer its health checks")
    hang.unlink()
    host.wait_for("decode-0 is ready again")
    assert host.entry("decode-0")["restarts"] == 0


def test_a_worker_that_keeps_dying_is_given_up_and_ends_the_host(host: Host) -> None:
    host.start(*QUICK, "--max-quick-deaths", "2", "--decode-args", "--fake-die-after 1 --fake-exit 9")
    host.wait_ready()
    assert host.exit_code() == 3
    assert "decode-0 ended with exit code 9 and is started again in 0.1 s" in host.output
    assert "decode-0 ended with exit code 9 and is given up after 2 quick deaths in a row" in host.output
    assert "no decode process is left, so the host ends" in host.output
    host.assert_nothing_left()


def test_the_host_lives_on_while_the_role_has_another_worker(host: Host, tmp_path: Path) -> None:
    once = tmp_path / "once"
    flags = ("--max-quick-deaths", "1", "--decode-args", f"--fake-die-after 1 --fake-die-once {once}")
    host.start(*QUICK, *flags, pools=("--prefill", "1", "--decode", "2"))
    host.wait_ready()
    host.wait_for("is given up after 1 quick deaths")
    states = sorted(entry["state"] for entry in host.status()["processes"] if entry["role"] == "decode")
    assert states == ["given up", "ready"]
    host.signal(signal.SIGTERM)
    assert host.exit_code() == 0
    host.assert_nothing_left()


def test_logs_are_bounded(host: Host) -> None:
    host.start(*QUICK, "--log-max-mib", "1", pools=("--prefill", "1", "--decode", "1"))
    host.wait_ready()
    log = host.log_dir / "decode-0.log"
    with log.open("ab") as writer:
        writer.write(b"x" * 1_100_000 + b"\n")
    wait_until(lambda: log.stat().st_size < 1_000_000, "log emptied", 10.0)
    assert log.with_name("decode-0.log.1").stat().st_size > 1_100_000
