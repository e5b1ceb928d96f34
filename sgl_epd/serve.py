"""Door: `python -m sgl_epd.serve --model-path M --encode 2 --prefill 1 --decode 1 [--config serve.yaml] [-- FLAGS]`.

Starts the workers and the router of one host, shows how far they are, keeps them alive and ends all of them with
itself. What follows `--` goes to every worker.

Exit codes:
    0    ended because it was asked to (Ctrl-C, SIGTERM, SIGHUP)
    1    did not become ready: a process died or took too long, or it was asked to end before
    2    wrong flags, a taken port, or a log folder that another host uses
    3    a role (or the router) died too often and has no process left
    130  ended at once, by a second Ctrl-C
    137  the supervising process was killed (128 + signal); all others have been ended
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sgl_epd.config import ENV_PREFIX, options_of, parse
from sgl_epd.errors import ConfigError
from sgl_epd.host import devices, guard, logs, rundir
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.launcher import Launcher, SubprocessLauncher
from sgl_epd.host.layout import Layout, make_layout
from sgl_epd.host.report import make_reporter
from sgl_epd.host.spec import ProcessSpec
from sgl_epd.host.supervisor import Supervisor
from sgl_epd.worker.machine import is_free

EXIT_USAGE = 2
PROG = "python -m sgl_epd.serve"


def read_config(argv: Sequence[str]) -> ServeConfig:
    """Flags, environment and YAML, with what follows `--` added to the worker flags. Raises `ConfigError`."""
    own, extra = list(argv), []
    if "--" in own:
        cut = own.index("--")
        own, extra = own[:cut], own[cut + 1 :]
    try:
        config = parse(ServeConfig, _join_flag_values(own), prog=PROG, description=__doc__ or "")
    except ConfigError as error:
        if "unrecognized arguments" in str(error):
            raise ConfigError(f"{error} (flags for the workers follow after `--`)") from error
        raise
    return dataclasses.replace(config, worker_args=(*config.worker_args, *extra))


def _join_flag_values(argv: Sequence[str]) -> list[str]:
    """`--prefill-args --foo` -> `--prefill-args=--foo`: argparse takes a value that begins with a dash for a flag."""
    joined: list[str] = []
    takes_flags = {"--" + name.replace("_", "-") for name in _passed_on()}
    for arg in argv:
        if joined and joined[-1] in takes_flags:
            joined[-1] += "=" + arg
        else:
            joined.append(arg)
    return joined


def _passed_on() -> list[str]:
    return [f.name for f in dataclasses.fields(ServeConfig) if f.name.endswith(("_args", "_command"))]


def main(argv: Sequence[str] | None = None) -> int:
    try:
        config = read_config(sys.argv[1:] if argv is None else argv)
        layout = make_layout(config, is_free, devices.visible_gpus(os.environ))
        if config.dry_run:
            print("\n".join(spec.shell_line() for spec in layout.processes))
            return 0
        return serve(config, layout)
    except ConfigError as error:
        print(f"serve: {error}", file=sys.stderr)
        return EXIT_USAGE


def serve(config: ServeConfig, layout: Layout, launcher: Launcher | None = None) -> int:
    """Run `layout` until it ends. Forks; call it before any thread is started."""
    lock = _lock_logs(config.log_folder)
    _forget_own_environment()
    run = rundir.create()
    for spec in layout.processes:
        logs.begin(spec.log_path)
    layout = _with_run_dir(layout, run)

    def supervise() -> int:
        return asyncio.run(_supervise(config, layout, launcher or SubprocessLauncher(), run))

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


async def _supervise(config: ServeConfig, layout: Layout, launcher: Launcher, run: rundir.RunDir) -> int:
    guard_pid = os.getppid()
    reporter = make_reporter()
    supervisor = Supervisor(config, layout, launcher, reporter, run.ledger)
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


if __name__ == "__main__":
    sys.exit(main())
