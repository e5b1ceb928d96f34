"""Runs a `Layout`: start everything, wait until it serves, keep it alive, end it in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from sgl_epd.errors import WorkerError
from sgl_epd.host import logs, proctree
from sgl_epd.host.advice import death_report, how_it_ended
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.launcher import Launcher
from sgl_epd.host.layout import Layout
from sgl_epd.host.leftovers import Ledger
from sgl_epd.host.lifecycle import Action, State
from sgl_epd.host.managed import ManagedProcess, end_together
from sgl_epd.host.probe import Prober, json_object
from sgl_epd.host.view import ProcessView, Reporter, write_status

EXIT_OK = 0
EXIT_STARTUP = 1
EXIT_GAVE_UP = 3
EXIT_FORCED = 130

Job = Callable[[], Awaitable[int | None]]
"""Something to do once the host serves. Its exit code ends the host; None keeps the host serving."""

_TICK_S = 0.1
_NOT_READY_PROBE_S = 0.3
_HOUSEKEEPING_S = 2.0
# Reading every memory map takes tens of milliseconds with SGLang's processes.
_LEDGER_S = 15.0
_READINESS_TIMEOUT_S = 2.0
# The router draws the line itself after its drain time; it gets a little more to do so.
_ROUTER_EXTRA_S = 2.0


class Supervisor:
    """Make it and call `run` inside one event loop; `request_stop` and `hurry` come from signal handlers."""

    def __init__(
        self,
        config: ServeConfig,
        layout: Layout,
        launcher: Launcher,
        reporter: Reporter,
        ledger: Ledger,
        job: Job | None = None,
    ) -> None:
        self._config = config
        self._layout = layout
        self._launcher = launcher
        self._reporter = reporter
        self._ledger = ledger
        self._job = job
        self._clock = asyncio.get_running_loop().time
        self._begun_at = self._clock()
        self._processes = [ManagedProcess(spec, config.restart_policy, self._begun_at) for spec in layout.processes]
        self._prober = Prober()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_s = config.drain_secs
        self._phase = "starting"
        self._status_path: Path = config.log_folder / "status.json"
        self._written: object = None
        self._housekeeping_at = self._begun_at
        self._ledger_at = self._begun_at

    def request_stop(self, *, drain: bool = True) -> None:
        """End the host in order; without `drain` the router does not wait for requests in flight."""
        if not drain:
            self._drain_s = 0.0
        self._stop.set()

    def hurry(self) -> None:
        """End the host now: no draining, no grace."""
        self._hurry.set()
        self._stop.set()

    async def run(self) -> int:
        """Until stopped or beyond repair. Returns the exit code; no child is left when it returns or raises."""
        try:
            code = await self._serve() if await self._start_up() else EXIT_STARTUP
        except WorkerError as error:
            self._reporter.close()
            self._reporter.event(f"start-up failed: {error}")
            code = EXIT_STARTUP
        finally:
            await self._end()
        return EXIT_FORCED if self._hurry.is_set() else code

    # -- starting --------------------------------------------------------------------------------------------------

    async def _start_up(self) -> bool:
        """Until every process is ready and the router sees every worker; False if asked to stop before.

        Raises `WorkerError` when a process dies or takes too long.
        """
        while not self._stop.is_set():
            now = self._clock()
            for process in self._processes:
                self._start_up_step(process, now)
            self._reporter.tick(self._views(now), now - self._begun_at)
            self._keep_house(now)
            if all(process.ready for process in self._processes) and await self._router_sees_all():
                self._announce()
                return True
            await self._pause()
        return False

    def _start_up_step(self, process: ManagedProcess, now: float) -> None:
        action = process.lifecycle.decide(now)
        if action is Action.START:
            process.start(self._launcher, now)
        elif action is Action.REPLACE:
            limit = f"{self._config.startup_timeout_secs:g} s (--startup-timeout-secs)"
            raise WorkerError(death_report(process.spec, f"was not ready after {limit}", 0))
        process.poll(now)
        if process.last_exit is not None:
            what = how_it_ended(process.last_exit) + " while starting"
            raise WorkerError(death_report(process.spec, what, process.last_exit))
        self._probe(process, now)

    async def _router_sees_all(self) -> bool:
        status, body = await self._prober.get(self._layout.router.url + "/readiness", _READINESS_TIMEOUT_S)
        reply = json_object(body)
        return status == 200 and reply.get("healthy_workers") == reply.get("total_workers")

    def _announce(self) -> None:
        now = self._clock()
        self._phase = "serving"
        self._reporter.tick(self._views(now), now - self._begun_at)
        self._write_status()
        self._note_leftovers()
        self._reporter.ready(
            f"ready after {now - self._begun_at:.1f} s: {self._layout.router.url} "
            f"({', '.join(spec.name for spec in self._layout.workers)}); "
            f"logs in {self._config.log_folder}; Ctrl-C ends it"
        )

    # -- serving ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> int:
        """Watch the processes, and do the job beside it."""
        if self._job is None:
            return await self._watch(None)
        job = asyncio.ensure_future(self._job())
        try:
            return await self._watch(job)
        finally:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)

    async def _watch(self, job: asyncio.Future[int | None] | None) -> int:
        """Until asked to stop, until the job has ended the host, or until a role has no worker left."""
        while not self._stop.is_set():
            if job is not None and job.done() and (code := job.result()) is not None:
                return code
            now = self._clock()
            for process in self._processes:
                self._watch_step(process, now)
            self._keep_house(now)
            for role in {process.spec.role for process in self._processes}:
                if all(process.given_up for process in self._processes if process.spec.role == role):
                    self._reporter.event(f"no {role} process is left, so the host ends")
                    return EXIT_GAVE_UP
            await self._pause()
        return EXIT_OK if job is None or job.done() else EXIT_FORCED

    def _watch_step(self, process: ManagedProcess, now: float) -> None:
        state = process.lifecycle.state
        action = process.lifecycle.decide(now)
        if action is Action.START and process.may_start:
            self._reporter.event(f"starting {process.spec.name} again")
            if not process.start(self._launcher, now):
                self._report_death(process)
        elif action is Action.REPLACE and process.replace(now, self._config.worker_grace_secs):
            self._reporter.event(f"{process.spec.name} has been {state} for too long and is replaced")
        if process.poll(now) is not None:
            self._report_death(process)
        self._probe(process, now)
        if text := process.news():
            self._reporter.event(f"{process.spec.name} {text}")

    def _report_death(self, process: ManagedProcess) -> None:
        life = process.lifecycle
        code = process.last_exit if process.last_exit is not None else 0
        if life.state is State.GIVEN_UP:
            what = f"{how_it_ended(code)} and is given up after {life.quick_deaths} quick deaths in a row"
        else:
            what = f"{how_it_ended(code)} and is started again in {life.start_at - life.since:g} s"
        self._reporter.event(death_report(process.spec, what, code))

    # -- ending ----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        self._phase = "ending"
        self._reporter.close()
        self._note_leftovers()
        self._write_status()
        for process in self._processes:
            await process.cancel_probe()
        routers = [process for process in self._processes if process.spec.is_router]
        workers = [process for process in self._processes if not process.spec.is_router]
        # The router first: it ends when its requests have, and takes no new ones meanwhile.
        await self._end_part(routers, self._drain_s + _ROUTER_EXTRA_S)
        await self._end_part(workers, self._config.worker_grace_secs)
        self._launcher.close()
        await self._prober.close()
        self._phase = "ended"
        self._write_status(state="ended")
        self._reporter.event("all processes have ended")

    async def _end_part(self, processes: list[ManagedProcess], grace_s: float) -> None:
        killed = await end_together(processes, grace_s, self._hurry, self._clock)
        if killed and not self._hurry.is_set():
            self._reporter.event(f"{', '.join(killed)} did not end within {grace_s:g} s and had to be killed")

    # -- all the time ----------------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_TICK_S):
                await self._stop.wait()
        except TimeoutError:
            return

    def _probe(self, process: ManagedProcess, now: float) -> None:
        # SGLang answers a health check by computing a token: once it is up, do not ask more often than told to.
        interval_s = self._config.health_check_interval_secs if process.ready else _NOT_READY_PROBE_S
        process.probe_if_due(self._prober, now, interval_s, self._config.health_check_timeout_secs)

    def _keep_house(self, now: float) -> None:
        """Write `status.json` when something changed; now and then bound the logs and note shared memory."""
        self._write_status()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + _HOUSEKEEPING_S
        for process in self._processes:
            logs.bound(process.spec.log_path, self._config.log_max_mib * 2**20)
        if now >= self._ledger_at:
            self._ledger_at = now + _LEDGER_S
            self._note_leftovers()

    def _note_leftovers(self) -> None:
        self._ledger.observe(process.pid for process in proctree.descendants())

    def _views(self, now: float, state: str | None = None) -> list[ProcessView]:
        return [process.view(now, state) for process in self._processes]

    def _write_status(self, state: str | None = None) -> None:
        views = self._views(self._clock(), state)
        key = (self._phase, [(view.state, view.pid, view.restarts) for view in views])
        if key != self._written:
            self._written = key
            write_status(self._status_path, self._phase, self._layout.router.url, views)
