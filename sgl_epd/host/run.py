"""Runs a layout as a host: under a guard, with a run directory and locked logs, until it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import signal
import sys
from pathlib import Path

from sgl_epd.config import ENV_PREFIX, options_of
from sgl_epd.errors import ConfigError
from sgl_epd.host import guard, logs, rundir
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.launcher import Launcher, SubprocessLauncher
from sgl_epd.host.layout import Layout
from sgl_epd.host.report import make_reporter
from sgl_epd.host.spec import ProcessSpec
from sgl_epd.host.supervisor import Job, Supervisor


def run_host(config: ServeConfig, layout: Layout, launcher: Launcher | None = None, job: Job | None = None) -> int:
    """Run `layout`, and `job` once it is ready, until it ends. Forks; call it before any thread is started."""
    lock = _lock_logs(config.log_folder)
    _forget_own_environment()
    run = rundir.create()
    for spec in layout.processes:
        logs.begin(spec.log_path)
    layout = _with_run_dir(layout, run)

    def supervise() -> int:
        return asyncio.run(_supervise(config, layout, launcher or SubprocessLauncher(), run, job))

    def clean_up() -> None:
        run.remove()
        os.close(lock)

    return guard.run_guarded(supervise, clean_up, lambda text: print(f"serve: {text}", file=sys.stderr))


def _forget_own_environment() -> None:
    """What was meant for us (`SGL_EPD_PORT`, `SGL_EPD_CONFIG`) must not reach the router, which has such flags too."""
    for name in (*options_of(ServeConfig), "config"):
        os.environ.pop(ENV_PREFIX + name.upper(), None)


def _with_run_dir(layout: Layout, run: rundir.RunDir) -> Layout:
    def placed(spec: ProcessSpec) -> ProcessSpec:
        return dataclasses.replace(spec, env={**spec.env, **run.environment(spec.name)})

    return dataclasses.replace(layout, workers=tuple(map(placed, layout.workers)), router=placed(layout.router))


async def _supervise(
    config: ServeConfig, layout: Layout, launcher: Launcher, run: rundir.RunDir, job: Job | None
) -> int:
    guard_pid = os.getppid()
    reporter = make_reporter()
    supervisor = Supervisor(config, layout, launcher, reporter, run.ledger, job)
    loop = asyncio.get_running_loop()
    interrupts = 0

    def on_interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            supervisor.hurry()
            return
        reporter.close()
        reporter.event("ending (Ctrl-C again: at once)")
        supervisor.request_stop()

    def on_terminate() -> None:
        # The kernel sends this too, when the guard is gone: then nobody is left to wait for us.
        supervisor.request_stop(drain=os.getppid() == guard_pid)

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.add_signal_handler(signal.SIGTERM, on_terminate)
    loop.add_signal_handler(signal.SIGHUP, supervisor.request_stop)
    guard.accept_signals()
    for note in layout.notes:
        reporter.event(note)
    return await supervisor.run()


def _lock_logs(folder: Path) -> int:
    """Keep other hosts from writing to the same logs, as long as this one lives. Raises `ConfigError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write to --log-dir {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"another host writes its logs to {folder}; choose another --log-dir") from None
    return lock
