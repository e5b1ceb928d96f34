"""The small helpers: logs, advice, devices, status, leftovers."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import ConfigError
from sgl_epd.host import advice, devices, leftovers, logs
from sgl_epd.host.ports import PortAllocator
from sgl_epd.host.report import LineReporter
from sgl_epd.host.spec import ProcessSpec
from sgl_epd.host.view import ProcessView, write_status


def view(state: str, log: Path, name: str = "encode-0") -> ProcessView:
    return ProcessView(name, "encode", "http://h:1", state, 7, 0, 1.0, log)


def test_tail_gives_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\n 10%\r 55%\r 99%\r\nlast\n  \n")
    assert logs.tail(log, 2) == [" 99%", "last"]
    assert logs.tail(tmp_path / "absent", 2) == []


def test_tail_of_a_long_log_reads_only_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert logs.tail(log, 3) == ["line 99997", "line 99998", "line 99999"]


def test_a_bounded_log_goes_on_where_it_was_emptied(tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = logs.open_log(log)
    os.write(writer, b"x" * 100)
    assert not logs.bound(log, 100)
    os.write(writer, b"y")
    assert logs.bound(log, 100)
    os.write(writer, b"new")
    os.close(writer)
    assert log.read_bytes() == b"new"
    assert logs.previous(log).read_bytes() == b"x" * 100 + b"y"


def test_how_a_process_ended() -> None:
    assert advice.how_it_ended(3) == "ended with exit code 3"
    assert advice.how_it_ended(-signal.SIGSEGV) == "was ended by SIGSEGV"


@pytest.mark.parametrize(
    ("code", "line", "says"),
    [
        (1, "OSError: [Errno 98] Address already in use", "--worker-port-base"),
        (1, "torch.OutOfMemoryError: CUDA out of memory", "--mem-fraction-static"),
        (1, "launch_server: cannot import SGLang (No module named 'sglang')", "is not installed"),
        (2, "launch_server: --dtype needs a value", "did not accept its flags"),
        (-9, "loading weights", "lack of memory"),
        (1, "Traceback", "--dry-run"),
    ],
)
def test_what_to_do(code: int, line: str, says: str) -> None:
    assert says in advice.what_to_do(code, ["loading", line])


def test_death_report_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "encode-0.log"
    log.write_text("one\ntwo\n")
    spec = ProcessSpec("encode-0", "encode", ("c",), (), {}, log, "http://h:1")
    assert advice.death_report(spec, "ended", 1).splitlines()[:3] == [
        f"encode-0 ended. The end of {log}:",
        "  | one",
        "  | two",
    ]


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ((), 1),
        (("--tp", "4"), 4),
        (("--tp-size=2", "--pp", "2"), 4),
        (("--tp", "2", "--dp", "2"), 4),
        (("--tp", "2", "--dp", "2", "--enable-dp-attention"), 2),
    ],
)
def test_gpus_needed(args: tuple[str, ...], count: int) -> None:
    assert devices.gpus_needed(args) == count


def test_gpus_needed_refuses_nonsense() -> None:
    with pytest.raises(ConfigError, match="--tp-size x: expected a number"):
        devices.gpus_needed(("--tp", "x"))


def test_visible_gpus(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert devices.visible_gpus({}, tmp_path) == ("0", "1")
    assert devices.visible_gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-abc"}, tmp_path) == ("2", "GPU-abc")
    assert devices.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


def test_a_fixed_port_may_not_be_assigned_twice() -> None:
    ports = PortAllocator(100, lambda port: True)
    ports.fix(100, "router", "HTTP", "--port")
    with pytest.raises(ConfigError, match="--other 100: that is already the HTTP port of router"):
        ports.fix(100, "x", "y", "--other")
    with pytest.raises(ConfigError, match="--port 70000: a port is a number from 1 to 65535"):
        ports.fix(70000, "x", "y", "--port")


@given(st.frozensets(st.integers(100, 130)), st.integers(100, 130), st.integers(1, 40))
def test_assigned_ports_are_free_and_disjoint(taken: frozenset[int], fixed: int, count: int) -> None:
    ports = PortAllocator(100, lambda port: port not in taken)
    if fixed not in taken:
        ports.fix(fixed, "router", "HTTP", "--port")
    numbers = [ports.take("w", "HTTP") for _ in range(count)]
    every = [port.number for port in ports.assigned]
    assert len(set(every)) == len(every) >= count
    assert not taken & set(every)
    assert numbers == sorted(numbers)
    assert set(ports.skipped) <= taken


def test_status_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_status(path, "serving", "http://r:1", [view("ready", tmp_path / "l")])
    loaded = json.loads(path.read_text())
    assert (loaded["phase"], loaded["url"], loaded["pid"]) == ("serving", "http://r:1", os.getpid())
    assert loaded["processes"][0]["state"] == "ready"
    assert list(tmp_path.iterdir()) == [path]


def test_lines_are_printed_once_a_change_and_every_ten_seconds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loading\n")
    out = io.StringIO()
    reporter = LineReporter(out)
    for tenth in range(120):
        reporter.tick([view("starting", log)], tenth / 10)
    reporter.tick([view("ready", log)], 12.0)
    lines = out.getvalue().splitlines()
    assert lines == [
        "[   0.0 s] encode-0   starting  http://h:1",
        "[  10.0 s] encode-0   still starting: loading",
        "[  12.0 s] encode-0   ready     http://h:1",
    ]


def test_a_reporter_without_a_reader_does_not_fail(tmp_path: Path) -> None:
    out = io.StringIO()
    out.close()
    LineReporter(out).event("nobody hears this")


def test_the_ledger_notes_sockets_and_removes_them_when_unused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ledger = leftovers.Ledger(tmp_path / "ledger.json")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        ledger.observe([os.getpid()])
        assert str(path) not in ledger.sweep()
        assert path.exists()
    assert leftovers.Ledger(tmp_path / "ledger.json").sweep() == [str(path)]
    assert not path.exists()


def test_the_ledger_leaves_a_file_that_was_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ledger = leftovers.Ledger(tmp_path / "ledger.json")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        ledger.observe([os.getpid()])
    # Kept until the new one exists, so that the file system cannot give out the same inode.
    path.rename(tmp_path / "old")
    path.touch()
    assert ledger.sweep() == []
    assert path.exists()


def test_a_vanished_process_is_no_error() -> None:
    assert leftovers.files_in_use([2**22 + 1]) == set()
