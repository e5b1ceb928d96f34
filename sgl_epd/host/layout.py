"""From a `ServeConfig` to the processes of the host: names, ports, devices and command lines. Starts nothing."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence

from sgl_epd.errors import ConfigError
from sgl_epd.host import devices
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.ports import PortAllocator
from sgl_epd.host.spec import ROUTER_ROLE, ProcessSpec
from sgl_epd.worker.flags import complete, given, value
from sgl_epd.worker.plan import Role

WORKER_COMMAND = (sys.executable, "-m", "sgl_epd.launch_server")
_ROUTER_COMMAND = (sys.executable, "-m", "sgl_epd.launch_router")
# SGLang flags that follow from the layout -> the flag of `serve` that decides them.
_CHOSEN_HERE = {
    "--port": "--worker-port-base",
    "--disaggregation-bootstrap-port": "--worker-port-base",
    "--encoder-bootstrap-port": "--worker-port-base",
    "--host": "--worker-host",
    "--role": "--encode, --prefill, --decode or --mixed",
    "--engine": "--engine",
    "--model-path": "--model-path",
    "--model": "--model-path",
    "--encoder-urls": "--encode N",
}
# With these SGLang derives or repeats the port of its process group by itself.
_OWN_PROCESS_GROUP = ("--nccl-port", "--dist-init-addr", "--dp-size", "--dp", "--data-parallel-size")
# The router looks more often than its default of a minute: a restarted worker on this host should serve at once.
_ROUTER_HEALTH_INTERVAL_S = "5"


@dataclasses.dataclass(frozen=True)
class Layout:
    """All processes, workers first, and what the user should know about the choices made."""

    workers: tuple[ProcessSpec, ...]
    router: ProcessSpec
    notes: tuple[str, ...]

    @property
    def processes(self) -> tuple[ProcessSpec, ...]:
        return (*self.workers, self.router)


@dataclasses.dataclass
class _Worker:
    """A worker while its layout is being worked out."""

    role: Role
    name: str
    args: tuple[str, ...]
    port: int
    bootstrap_port: int | None = None
    encoder_port: int | None = None
    nccl_port: int | None = None


def make_layout(config: ServeConfig, is_free: Callable[[int], bool], gpus: Sequence[str]) -> Layout:
    """Assign ports (asking `is_free`) and `gpus` and write the command lines. Raises `ConfigError`."""
    ports = PortAllocator(config.worker_port_base, is_free)
    ports.fix(config.port, ROUTER_ROLE, "HTTP", "--port")
    workers = [_place(config, role, index, ports) for role in Role for index in range(config.count(role))]
    assigned = _assign_devices(config, workers, gpus)
    encoders = [_url(config.worker_host, worker.port) for worker in workers if worker.role is Role.ENCODE]
    specs = tuple(_worker_spec(config, worker, encoders, assigned[worker.name]) for worker in workers)
    notes = [f"port {port} is taken, used the next one" for port in ports.skipped]
    notes += [
        f"GPU {gpu} is shared by {', '.join(names)}: leave room with --mem-fraction-static"
        for gpu, names in devices.shared(assigned).items()
    ]
    return Layout(specs, _router_spec(config, workers), tuple(notes))


def _place(config: ServeConfig, role: Role, index: int, ports: PortAllocator) -> _Worker:
    args = config.args_for(role)
    for flag, instead in _CHOSEN_HERE.items():
        if given(args, flag):
            raise ConfigError(f"{flag} among the worker flags: serve decides it; use its own {instead}")
    name = f"{role}-{index}"
    worker = _Worker(role, name, args, ports.take(name, "HTTP"))
    if role is Role.PREFILL:
        worker.bootstrap_port = ports.take(name, "KV bootstrap")
        worker.encoder_port = ports.take(name, "encoder bootstrap")
    if role is not Role.ENCODE and config.engine == "sglang" and not given(args, *_OWN_PROCESS_GROUP):
        # SGLang draws this port at random and binds it seconds later: two workers could draw the same.
        worker.nccl_port = ports.take(name, "process group")
    return worker


def _assign_devices(
    config: ServeConfig, workers: Sequence[_Worker], gpus: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    if config.devices:
        return {worker.name: tuple(group.split(",")) for worker, group in zip(workers, config.devices, strict=True)}
    on_cpu = [worker.name for worker in workers if value(worker.args, "--device") == "cpu"]
    if config.engine != "sglang" or on_cpu:
        return {worker.name: () for worker in workers}
    needs = [devices.gpus_needed(worker.args) for worker in workers]
    return dict(zip((worker.name for worker in workers), devices.assign(needs, gpus), strict=True))


def _worker_spec(config: ServeConfig, worker: _Worker, encoders: Sequence[str], gpus: Sequence[str]) -> ProcessSpec:
    defaults: list[tuple[str, ...]] = []
    if worker.role is Role.PREFILL:
        defaults.append(("--disaggregation-bootstrap-port", str(worker.bootstrap_port)))
        defaults.append(("--encoder-bootstrap-port", str(worker.encoder_port)))
        if encoders:
            defaults.append(("--encoder-urls", *encoders))
    if worker.nccl_port is not None:
        defaults.append(("--nccl-port", str(worker.nccl_port)))
    own = ["--role", worker.role.value, "--engine", config.engine, "--model-path", config.model_path]
    own += ["--host", config.worker_host, "--port", str(worker.port)]
    return ProcessSpec(
        name=worker.name,
        role=worker.role.value,
        command=config.worker_command or WORKER_COMMAND,
        args=tuple(own + complete(worker.args, defaults)),
        env={"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {},
        log_path=config.log_folder / f"{worker.name}.log",
        url=_url(config.worker_host, worker.port),
    )


def _router_spec(config: ServeConfig, workers: Sequence[_Worker]) -> ProcessSpec:
    args = ["--host", config.host, "--port", str(config.port)]
    if config.prefill:
        args.append("--epd-disaggregation" if config.encode else "--pd-disaggregation")
    mixed = [_url(config.worker_host, worker.port) for worker in workers if worker.role is Role.MIXED]
    if mixed:
        args += ["--worker-urls", *mixed]
    for worker in workers:
        if worker.role is not Role.MIXED:
            args += [f"--{worker.role}", _url(config.worker_host, worker.port)]
            args += [str(port) for port in (worker.bootstrap_port, worker.encoder_port) if port is not None]
    defaults = [
        ("--health-check-interval-secs", _ROUTER_HEALTH_INTERVAL_S),
        ("--shutdown-grace-period-secs", str(config.drain_secs)),
    ]
    return ProcessSpec(
        name=ROUTER_ROLE,
        role=ROUTER_ROLE,
        command=config.router_command or _ROUTER_COMMAND,
        args=(*args, *complete(config.router_args, defaults)),
        env={},
        log_path=config.log_folder / "router.log",
        url=_url(_reachable(config.host), config.port),
    )


def _reachable(host: str) -> str:
    """An address to connect to for one to listen on."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _url(host: str, port: int) -> str:
    host = _reachable(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
