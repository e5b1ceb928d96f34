"""Finding and ending processes that we are responsible for: descendants, and members of a session.

SGLang starts schedulers, detokenizers and resource trackers below each worker. When the worker dies they get another
parent, but they stay in its session (a worker leads one) and stay descendants of a process that adopts orphans.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

import psutil

TRACKER_GRACE_S = 1.0
"""How long Python's resource trackers are spared: they unlink the shared memory of the processes that they served as
soon as these are gone, and then end by themselves."""
GIVE_UP_S = 10.0
"""A process in an uninterruptible wait cannot be killed; after this long it is left to the kernel."""
_POLL_S = 0.02


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Every process below `pid` (default: this one) that has not ended."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if _alive(process)]


def session_members(session: int) -> list[psutil.Process]:
    """Every living process of the session that `session` leads or led.

    Safe after the leader's death: the kernel does not reuse its number while the session has members.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session and _alive(process):
                found.append(process)
    return found


class Ending:
    """Kills what `find` returns until it returns nothing. Call `step` now and then until it says True."""

    def __init__(self, find: Callable[[], Iterable[psutil.Process]], now: float) -> None:
        self._find = find
        self._begun_at = now
        self.killed: set[int] = set()

    def step(self, now: float) -> bool:
        elapsed = now - self._begun_at
        left = list(self._find())
        for process in left:
            if elapsed < TRACKER_GRACE_S and _is_resource_tracker(process):
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                self.killed.add(process.pid)
        return not left or elapsed >= GIVE_UP_S


def end_now(find: Callable[[], Iterable[psutil.Process]]) -> int:
    """Run an `Ending` to its end, reaping adopted processes. Returns how many processes were killed."""
    ending = Ending(find, time.monotonic())
    while not ending.step(time.monotonic()):
        reap()
        time.sleep(_POLL_S)
    reap()
    return len(ending.killed)


def reap_session(session: int) -> None:
    """Collect the exit status of adopted processes of an ended session, so that they do not stay zombies."""
    for process in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
            if os.getsid(process.pid) == session and not _alive(process):
                os.waitpid(process.pid, os.WNOHANG)


def reap() -> None:
    """Collect the exit status of every child that has ended. Only for a process that waits for none by itself."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
