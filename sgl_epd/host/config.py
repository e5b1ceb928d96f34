"""`ServeConfig`: every flag of `python -m sgl_epd.serve`, checked for contradictions before anything starts."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from sgl_epd.config import option
from sgl_epd.errors import ConfigError
from sgl_epd.host.lifecycle import RestartPolicy
from sgl_epd.worker.plan import Role


def parse_args(value: Any) -> tuple[str, ...]:
    """Flags for another program: one string as a shell would take it, or (in YAML) a list."""
    if isinstance(value, list | tuple):
        return tuple(str(part) for part in value)
    return tuple(shlex.split(str(value)))


def _extra(help: str, metavar: str = '"FLAGS"') -> Any:
    return option((), help, group="flags passed on", metavar=metavar, parse=parse_args)


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Immutable once parsed; the same names on the command line, in YAML and in the environment."""

    model_path: str = option("", "model folder or Hugging Face name, for all workers", group="cluster")
    encode: int = option(0, "number of encode workers", group="cluster", metavar="N")
    prefill: int = option(0, "number of prefill workers", group="cluster", metavar="N")
    decode: int = option(0, "number of decode workers", group="cluster", metavar="N")
    mixed: int = option(0, "number of aggregated workers", group="cluster", metavar="N")
    engine: str = option("sglang", "what computes", group="cluster", choices=("sglang", "emulated"))
    devices: tuple[str, ...] = option(
        (),
        "GPUs of each worker in the order encode, prefill, decode, mixed (`0 1 2,3`); without it they are shared out",
        group="cluster",
        nargs="+",
        metavar="GPU[,GPU]",
    )

    host: str = option("127.0.0.1", "address that the router listens on", group="network")
    port: int = option(30000, "port that the router listens on", group="network")
    worker_host: str = option("127.0.0.1", "address that the workers listen on", group="network")
    worker_port_base: int = option(30100, "workers get free ports from here upwards", group="network")

    worker_args: tuple[str, ...] = _extra("SGLang flags for every worker; the same as what follows `--`")
    encode_args: tuple[str, ...] = _extra("SGLang flags for the encode workers")
    prefill_args: tuple[str, ...] = _extra("SGLang flags for the prefill workers")
    decode_args: tuple[str, ...] = _extra("SGLang flags for the decode workers")
    mixed_args: tuple[str, ...] = _extra("SGLang flags for the aggregated workers")
    router_args: tuple[str, ...] = _extra("flags for the router")
    worker_command: tuple[str, ...] = _extra(
        "how a worker is run instead of `python -m sgl_epd.launch_server`: with a profiler or `numactl` in front",
        '"COMMAND"',
    )
    router_command: tuple[str, ...] = _extra(
        "how the router is run instead of `python -m sgl_epd.launch_router`", '"COMMAND"'
    )

    startup_timeout_secs: float = option(1800.0, "a worker must be ready after this long", group="supervision")
    health_check_interval_secs: float = option(10.0, "pause between health checks of one process", group="supervision")
    health_check_timeout_secs: float = option(30.0, "a health check must be answered in this time", group="supervision")
    unhealthy_restart_secs: float = option(
        120.0, "a worker that fails health checks for this long is restarted", group="supervision"
    )
    restart_backoff_secs: float = option(1.0, "pause before the first restart; it doubles", group="supervision")
    restart_max_backoff_secs: float = option(60.0, "longest pause before a restart", group="supervision")
    restart_stable_secs: float = option(
        60.0, "a worker that was ready for this long has not died quickly", group="supervision"
    )
    max_quick_deaths: int = option(5, "quick deaths in a row after which a worker is given up", group="supervision")

    drain_secs: float = option(30.0, "how long the router may finish its requests at the end", group="ending")
    worker_grace_secs: float = option(20.0, "how long workers may take to end before they are killed", group="ending")

    log_dir: str = option("logs", "folder for one log a process and status.json", group="logs")
    log_max_mib: int = option(64, "a log larger than this is moved to NAME.log.1", group="logs")
    dry_run: bool = option(False, "print the commands, start nothing", group="logs")

    def __post_init__(self) -> None:
        if not self.model_path:
            raise ConfigError("--model-path is missing: name a local folder or a Hugging Face model")
        self._check_counts()
        for name in ("startup_timeout_secs", "health_check_interval_secs", "health_check_timeout_secs"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be more than 0")
        for name in ("drain_secs", "worker_grace_secs", "unhealthy_restart_secs"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must not be negative")
        if self.log_max_mib < 1:
            raise ConfigError("--log-max-mib must be at least 1")
        if self.devices and len(self.devices) != sum(self.count(role) for role in Role):
            raise ConfigError(
                f"--devices names the GPUs of {len(self.devices)} workers, but there are "
                f"{sum(self.count(role) for role in Role)}"
            )

    def _check_counts(self) -> None:
        for role in Role:
            if self.count(role) < 0:
                raise ConfigError(f"--{role} must not be negative")
        if not (self.prefill or self.decode or self.mixed):
            raise ConfigError("no workers: give --prefill and --decode (and --encode), or --mixed")
        if bool(self.prefill) != bool(self.decode):
            present, missing = ("prefill", "decode") if self.prefill else ("decode", "prefill")
            raise ConfigError(f"--{present} without --{missing}: a request needs both, so give --{missing} 1 or more")
        if self.encode and not self.prefill:
            raise ConfigError("--encode needs --prefill and --decode: mixed workers encode by themselves")
        if self.prefill and self.mixed:
            raise ConfigError("--mixed does not go with --prefill and --decode behind one router; start two hosts")

    def count(self, role: Role) -> int:
        return {
            Role.ENCODE: self.encode,
            Role.PREFILL: self.prefill,
            Role.DECODE: self.decode,
            Role.MIXED: self.mixed,
        }[role]

    def args_for(self, role: Role) -> tuple[str, ...]:
        """The user's SGLang flags for one role; those of the role come last and so win."""
        own = {
            Role.ENCODE: self.encode_args,
            Role.PREFILL: self.prefill_args,
            Role.DECODE: self.decode_args,
            Role.MIXED: self.mixed_args,
        }[role]
        return (*self.worker_args, *own)

    @property
    def log_folder(self) -> Path:
        return Path(self.log_dir)

    @property
    def restart_policy(self) -> RestartPolicy:
        return RestartPolicy(
            startup_timeout_s=self.startup_timeout_secs,
            unhealthy_after_s=self.unhealthy_restart_secs,
            initial_backoff_s=self.restart_backoff_secs,
            max_backoff_s=self.restart_max_backoff_secs,
            stable_after_s=self.restart_stable_secs,
            max_quick_deaths=self.max_quick_deaths,
        )
