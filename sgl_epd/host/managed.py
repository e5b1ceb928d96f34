"""One supervised process over its restarts: a `Lifecycle`, the handle of the process that runs now, and its probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sgl_epd.errors import WorkerError
from sgl_epd.host import logs, proctree
from sgl_epd.host.launcher import Handle, Launcher
from sgl_epd.host.lifecycle import Lifecycle, RestartPolicy, State
from sgl_epd.host.probe import Prober
from sgl_epd.host.spec import ProcessSpec
from sgl_epd.host.view import ProcessView

EXIT_CANNOT_RUN = 127
"""What a shell reports for a program that it cannot run."""


class ManagedProcess:
    """Owned by the supervisor, which calls it from its loop; `now` is the loop's clock."""

    def __init__(self, spec: ProcessSpec, policy: RestartPolicy, now: float) -> None:
        self.spec = spec
        self.lifecycle = Lifecycle(policy, now)
        self.handle: Handle | None = None
        self.last_exit: int | None = None
        self._kill_at: float | None = None
        self._cleaning: proctree.Ending | None = None
        self._session = 0
        self._probe: asyncio.Task[None] | None = None
        self._probe_at = now
        self._told = State.READY

    @property
    def alive(self) -> bool:
        return self.handle is not None

    @property
    def may_start(self) -> bool:
        """Nothing of an earlier process is left."""
        return self.handle is None and self._cleaning is None

    def start(self, launcher: Launcher, now: float) -> bool:
        """Start the process. False if the program cannot be run at all, which counts as a death."""
        if self.lifecycle.starts:
            logs.mark(self.spec.log_path, f"start number {self.lifecycle.starts + 1}")
        self.lifecycle.started(now)
        self._kill_at = None
        self._probe_at = now
        try:
            self.handle = launcher.start(self.spec)
        except WorkerError as error:
            logs.mark(self.spec.log_path, str(error))
            self._ended(EXIT_CANNOT_RUN, now)
            return False
        return True

    def poll(self, now: float) -> int | None:
        """The exit code, once, when the process has ended; afterwards what it left in its session is ended."""
        if self._cleaning is not None and self._cleaning.step(now):
            self._cleaning = None
            proctree.reap_session(self._session)
        if self.handle is None:
            return None
        code = self.handle.poll()
        if code is None:
            if self._kill_at is not None and now >= self._kill_at:
                self.handle.kill()
            return None
        self._session = session = self.handle.pid
        self._cleaning = proctree.Ending(lambda: proctree.session_members(session), now)
        self._ended(code, now)
        return code

    def replace(self, now: float, grace_s: float) -> bool:
        """Ask the process to end, and kill it if it has not within `grace_s`. True the first time."""
        if self.handle is None or self._kill_at is not None:
            return False
        self._kill_at = now + grace_s
        self.handle.terminate()
        return True

    def probe_if_due(self, prober: Prober, now: float, interval_s: float, timeout_s: float) -> None:
        """Start a health probe unless one runs or it is too early. Its result reaches the lifecycle by itself."""
        busy = self._probe is not None and not self._probe.done()
        if busy or self.handle is None or self._kill_at is not None or now < self._probe_at:
            return
        self._probe_at = now + interval_s
        self._probe = asyncio.create_task(self._run_probe(prober, self.lifecycle.starts, timeout_s))

    async def _run_probe(self, prober: Prober, number: int, timeout_s: float) -> None:
        ok = await prober.is_healthy(self.spec.url + self.spec.health_path, timeout_s)
        self.lifecycle.probed(asyncio.get_running_loop().time(), number, ok)

    def news(self) -> str | None:
        """A sentence's end about the process's health, once for each change after the first start-up."""
        state = self.lifecycle.state
        if state is State.READY and self._told is not State.READY:
            self._told = state
            return "is ready again"
        if state is State.UNHEALTHY and self._told is not State.UNHEALTHY:
            self._told = state
            return "does not answer its health checks"
        if state not in (State.READY, State.UNHEALTHY):
            self._told = state
        return None

    def _ended(self, code: int, now: float) -> None:
        self.handle = None
        self.last_exit = code
        self.lifecycle.exited(now)

    async def cancel_probe(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    def view(self, now: float, state: str | None = None) -> ProcessView:
        return ProcessView(
            name=self.spec.name,
            role=self.spec.role,
            url=self.spec.url,
            state=state or self.lifecycle.state.value,
            pid=None if self.handle is None else self.handle.pid,
            restarts=max(0, self.lifecycle.starts - 1),
            age_s=now - self.lifecycle.since,
            log_path=self.spec.log_path,
        )

    @property
    def ready(self) -> bool:
        return self.lifecycle.state is State.READY

    @property
    def given_up(self) -> bool:
        return self.lifecycle.state is State.GIVEN_UP


async def end_together(
    processes: list[ManagedProcess], grace_s: float, hurry: asyncio.Event, clock: Callable[[], float]
) -> list[str]:
    """SIGTERM to all, and SIGKILL to those still there after `grace_s` or once `hurry` is set.

    Returns the names of those that had to be killed. Also ends what the processes left in their sessions.
    """
    running = [(process, process.handle) for process in processes if process.handle is not None]
    for _, handle in running:
        handle.terminate()
    deadline = clock() + grace_s
    while any(handle.poll() is None for _, handle in running) and clock() < deadline and not hurry.is_set():
        await asyncio.sleep(0.02)
    killed = [process.spec.name for process, handle in running if handle.poll() is None]
    for _, handle in running:
        handle.kill()
    sessions = {handle.pid for _, handle in running}
    rest = proctree.Ending(lambda: [p for sid in sessions for p in proctree.session_members(sid)], clock())
    while any(handle.poll() is None for _, handle in running) or not rest.step(clock()):
        await asyncio.sleep(0.02)
    for process, _ in running:
        process.handle = None
    return killed
