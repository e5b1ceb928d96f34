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

import dataclasses
import os
import sys
from collections.abc import Sequence

from sgl_epd.config import parse
from sgl_epd.errors import ConfigError
from sgl_epd.host import devices
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.layout import make_layout
from sgl_epd.host.run import run_host
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
        return run_host(config, layout)
    except ConfigError as error:
        print(f"serve: {error}", file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
