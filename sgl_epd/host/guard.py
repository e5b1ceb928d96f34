"""The process that outlives the supervisor.

`serve` forks at once. The parent, whose pid the user knows, is the guard; the child is the supervisor.

- The guard adopts orphans. Whatever the supervisor leaves when it is killed (its workers, their schedulers, their
  trackers) becomes the guard's child, and the guard ends all of it.
- When the guard itself is killed, the kernel sends the supervisor SIGTERM, and it ends the host without draining.
- When both are killed at once, the kernel kills the workers (each is started to die with its parent).

The supervisor is in a process group of its own, so that it gets each signal once: from the guard.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from sgl_epd.host import proctree
from sgl_epd.host.linux import adopt_orphans, die_with_parent

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_guarded(supervise: Callable[[], int], clean_up: Callable[[], None], report: Callable[[str], None]) -> int:
    """Run `supervise` in a child process; return its exit code when nothing of it is left.

    `clean_up` runs in the guard after the last descendant has ended. Until the child unblocks `FORWARDED`
    (`accept_signals`), signals wait. Call this before any thread is started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_child(supervise, clean_up, guard)
    _forward_to(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = _wait_for(child)
    for signum in FORWARDED:
        signal.signal(signum, signal.SIG_IGN)
    left = proctree.end_now(proctree.descendants)
    clean_up()
    if code < 0:
        report(f"the supervisor was ended by {signal.Signals(-code).name}; ended {left} processes that it left")
        return 128 - code
    return code


def accept_signals() -> None:
    """In the child, once its handlers are in place."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def _be_the_child(supervise: Callable[[], int], clean_up: Callable[[], None], guard: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        # In a background group output would stop us where the terminal has `tostop` set.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        die_with_parent(signal.SIGTERM, guard)
        adopt_orphans()
        code = supervise()
        if os.getppid() != guard:
            proctree.end_now(proctree.descendants)
            clean_up()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Never return into the guard's code.
        os._exit(code)


def _forward_to(child: int) -> None:
    def forward(signum: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signum)

    for signum in FORWARDED:
        # `nohup` has SIGHUP ignored; it stays so.
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, forward)


def _wait_for(child: int) -> int:
    """Reap adopted processes until `child` has ended; its exit code, or minus the signal that ended it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)
