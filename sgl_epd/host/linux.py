"""The two `prctl` calls that the standard library lacks. Nothing else here talks to libc."""

from __future__ import annotations

import ctypes
import os
import signal

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded once at import: after a fork there may be no lock left that loading could take.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: signal.Signals, parent: int) -> None:
    """Have the kernel send `signum` to this process when the thread of `parent` that made it ends.

    Call it in the child, right after the fork.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    # The parent may have died before the call, and then no signal comes.
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (a child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
