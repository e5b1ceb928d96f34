"""Door: `python -m sgl_epd.launch_server --role encode|prefill|decode|mixed --model-path M [SGLang flags]`.

Starts one worker with the right defaults for its role and this machine. Every flag that is not named here goes to
SGLang unchanged.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from sgl_epd.errors import ConfigError, EpdError
from sgl_epd.worker import register
from sgl_epd.worker.flags import value
from sgl_epd.worker.machine import cpu_list, free_port, has_gpu, is_free
from sgl_epd.worker.plan import Machine, Role, WorkerPlan, make_plan
from sgl_epd.worker.register import Registration

ADMIN_KEY_ENV = "SGL_EPD_ADMIN_API_KEY"
EXIT_USAGE = 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sgl_epd.launch_server",
        description="One worker of a role. Every other flag is SGLang's (see `python -m sglang.launch_server --help`).",
        allow_abbrev=False,
    )
    parser.add_argument("--role", required=True, choices=[role.value for role in Role])
    parser.add_argument("--engine", default="sglang", choices=["sglang"])
    parser.add_argument("--register", action="append", default=[], metavar="URL", help="router to register with")
    parser.add_argument("--advertise-url", metavar="URL", help="this worker's URL as the routers reach it")
    parser.add_argument(
        "--native-refs",
        action="store_true",
        help="take references to encoded items in place of images (off by default)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command line and environment, start nothing")
    return parser


def this_machine() -> Machine:
    return Machine(has_gpu=has_gpu(), cpus=cpu_list(), free_port=free_port)


def plan_from_argv(argv: Sequence[str]) -> tuple[argparse.Namespace, WorkerPlan]:
    """Parse our own flags and complete SGLang's. Raises `ConfigError`."""
    own, rest = build_parser().parse_known_args(list(argv))
    plan = make_plan(Role(own.role), rest, this_machine(), os.environ, native_refs=own.native_refs)
    if not own.dry_run and not is_free(plan.port):
        raise ConfigError(f"port {plan.port} is already in use; choose another with --port")
    if not own.dry_run and plan.bootstrap_port is not None and not is_free(plan.bootstrap_port):
        raise ConfigError(
            f"port {plan.bootstrap_port} is already in use; choose another with --disaggregation-bootstrap-port"
        )
    return own, plan


def registration(own: argparse.Namespace, plan: WorkerPlan) -> Registration | None:
    """What to tell the routers of `--register`; None without any. The key for their control routes comes from the
    environment, since command lines are readable by everybody on the host."""
    if not own.register:
        return None
    host = value(plan.argv, "--host") or "127.0.0.1"
    if host in ("0.0.0.0", "::") and own.advertise_url is None:
        raise ConfigError(f"--register with --host {host} needs --advertise-url: how do the routers reach this worker?")
    worker = {
        "url": own.advertise_url or f"http://{host}:{plan.port}",
        "worker_type": "regular" if plan.role is Role.MIXED else plan.role.value,
        "api_key": value(plan.argv, "--api-key"),
        "bootstrap_port": plan.bootstrap_port,
    }
    encoder_port = value(plan.argv, "--encoder-bootstrap-port")
    if encoder_port is not None:
        worker["encoder_bootstrap_port"] = int(encoder_port)
    return Registration(tuple(own.register), worker, os.environ.get(ADMIN_KEY_ENV))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the worker ends; returns its exit code, 2 for wrong flags."""
    try:
        own, plan = plan_from_argv(sys.argv[1:] if argv is None else argv)
        if own.dry_run:
            print(" ".join([*(f"{k}={v}" for k, v in plan.env.items()), "sglang.launch_server", *plan.argv]))
            return 0
        known = registration(own, plan)
        # By name: this package must be importable where SGLang is not installed.
        start = importlib.import_module("sgl_epd_srt.launch").start
        if known is not None:
            register.start(known)
        return int(start(plan))
    except ConfigError as error:
        print(f"launch_server: {error}", file=sys.stderr)
        return EXIT_USAGE
    except EpdError as error:
        print(f"launch_server: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
