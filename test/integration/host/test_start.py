"""Starting: ready, progress, and each way in which it can fail."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from host_process import Host


def test_becomes_ready_and_ends_on_interrupt(host: Host) -> None:
    host.start("--encode-args", "--fake-ready-after 0.5", pools=("--encode", "2", "--prefill", "1", "--decode", "1"))
    host.wait_ready()
    assert len(host.marked()) == 5
    status = host.status()
    assert status["phase"] == "serving"
    assert [entry["name"] for entry in status["processes"]] == [
        "encode-0",
        "encode-1",
        "prefill-0",
        "decode-0",
        "router",
    ]
    assert {entry["state"] for entry in status["processes"]} == {"ready"}
    assert "fake encode on" in (host.log_dir / "encode-1.log").read_text()
    host.signal(signal.SIGINT)
    assert host.exit_code() == 0
    assert "all processes have ended" in host.output
    host.assert_nothing_left()


def test_progress_lines_name_each_state(host: Host) -> None:
    host.start("--decode-args", "--fake-ready-after 0.6", pools=("--prefill", "1", "--decode", "1"))
    host.wait_ready()
    lines = [line.split() for line in host.output.splitlines() if line.startswith("[")]
    states = [(words[-3], words[-2]) for words in lines]
    assert ("decode-0", "starting") in states
    assert states.index(("prefill-0", "ready")) < states.index(("decode-0", "ready"))


def test_a_worker_that_dies_at_once(host: Host) -> None:
    host.start("--decode-args", "--fake-die-after 0 --fake-exit 7")
    assert host.exit_code() == 1
    assert "decode-0 ended with exit code 7 while starting" in host.output
    assert "  | fake: OSError: [Errno 98] Address already in use" in host.output
    assert "choose other ports with --worker-port-base" in host.output
    host.assert_nothing_left()


def test_a_worker_that_never_becomes_ready(host: Host) -> None:
    host.start("--prefill-args", "--fake-ready-after 600", "--startup-timeout-secs", "1")
    assert host.exit_code() == 1
    assert "prefill-0 was not ready after 1 s (--startup-timeout-secs)" in host.output
    host.assert_nothing_left()


def test_a_program_that_does_not_exist(host: Host) -> None:
    host.start("--worker-command", "/no/such/program")
    assert host.exit_code() == 1
    assert "/no/such/program: No such file or directory" in host.output
    host.assert_nothing_left()


def test_interrupt_while_starting(host: Host) -> None:
    host.start("--prefill-args", "--fake-ready-after 600 --fake-children")
    host.wait_for("prefill-0  starting")
    host.signal(signal.SIGINT)
    assert host.exit_code() == 1
    host.assert_nothing_left()


def test_the_routers_port_is_taken(host: Host) -> None:
    with socket.create_server(("127.0.0.1", host.port)):
        host.start()
        assert host.exit_code() == 2
    assert f"port {host.port} (HTTP of router) is taken by pid " in host.output
    assert "choose another with --port" in host.output


def test_a_workers_port_is_taken_and_passed_over(host: Host) -> None:
    with socket.create_server(("127.0.0.1", host.port + 1)):
        host.start(pools=("--prefill", "1", "--decode", "1"))
        host.wait_ready()
        assert host.entry("prefill-0")["url"] == f"http://127.0.0.1:{host.port + 2}"
    assert f"port {host.port + 1} is taken, used the next one" in host.output


def test_a_second_host_with_the_same_logs_is_refused(host: Host, tmp_path: Path) -> None:
    host.start("--decode-args", "--fake-ready-after 600")
    host.wait_for("decode-0   starting")
    second = Host(tmp_path / "second")
    second.folder.mkdir()
    second.log_dir = host.log_dir
    second.port = host.port + 50
    second.start()
    assert second.exit_code() == 2
    assert "another host writes its logs to" in second.output
    second.destroy()


def test_old_logs_are_kept_once(host: Host) -> None:
    host.log_dir.mkdir()
    (host.log_dir / "decode-0.log").write_text("from the last run\n")
    host.start(pools=("--prefill", "1", "--decode", "1"))
    host.wait_ready()
    assert (host.log_dir / "decode-0.log.1").read_text() == "from the last run\n"
    assert "from the last run" not in (host.log_dir / "decode-0.log").read_text()


def test_a_stale_run_directory_is_removed(host: Host) -> None:
    stale = host.temporary / "sgl-epd-stale"
    stale.mkdir()
    (stale / "lock").touch()
    (stale / "socket").touch()
    host.start(pools=("--prefill", "1", "--decode", "1"))
    host.wait_ready()
    assert not stale.exists()
    assert len(list(host.temporary.glob("sgl-epd-*"))) == 1
