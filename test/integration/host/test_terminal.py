"""On a real terminal: the live table, the Ctrl-C key, and a window that is closed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import threading

from host_process import Host, wait_until


class Terminal:
    """A pseudo-terminal with `serve` in its foreground, and what it shows."""

    def __init__(self, host: Host, *flags: str) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.shown = b""
        host.terminal = slave
        host.start(*flags, pools=("--prefill", "1", "--decode", "1"))
        os.close(slave)
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The master reads EIO once nobody holds the terminal open any more.
        with contextlib.suppress(OSError):
            while not self._closing.is_set():
                if select.select([self.master], [], [], 0.05)[0]:
                    self.shown += os.read(self.master, 65536)

    def close(self) -> None:
        """Close the window."""
        self._closing.set()
        self._reader.join()
        os.close(self.master)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)


def test_table_and_the_interrupt_key(host: Host) -> None:
    terminal = Terminal(host, "--decode-args", "--fake-ready-after 0.8")
    wait_until(lambda: b"starting" in terminal.shown, "a live table")
    wait_until(lambda: b"ready after" in terminal.shown, "ready")
    assert b"fake decode on" in terminal.shown
    assert b"\x1b[" in terminal.shown
    terminal.press(b"\x03")
    assert host.exit_code() == 0
    assert b"Ctrl-C again: at once" in terminal.shown
    terminal.close()
    host.assert_nothing_left()


def test_a_closed_window(host: Host) -> None:
    terminal = Terminal(host)
    wait_until(lambda: b"ready after" in terminal.shown, "ready")
    terminal.close()
    assert host.exit_code() == 0
    host.assert_nothing_left()
