"""From a role and the user's flags to the full command line and environment of one SGLang worker.

Pure: the machine is passed in. What the user gave wins over every default here; what contradicts the role is an error
with a sentence that says what to write instead.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from sgl_epd.errors import ConfigError
from sgl_epd.worker.flags import complete, given, value

DEFAULT_PORT = 30000
DEFAULT_BOOTSTRAP_PORT = 8998
DEFAULT_ENCODER_BOOTSTRAP_PORT = 8997
MAX_PORT = 65535
_ENCODER_CONFIGS = ("vision_config", "audio_config", "thinker_config")


class Role(StrEnum):
    """What a worker does. `mixed` is one aggregated server: encode, prefill and decode together."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a plan depends on besides the flags. `free_port(wished, taken)` gives a free TCP port."""

    has_gpu: bool
    cpus: str
    free_port: Callable[[int, Sequence[int]], int]


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """How to start the worker: `argv` for SGLang's own parser, `env` to add to the environment."""

    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    bootstrap_port: int | None


# Flag -> why it contradicts the role. SGLang would accept some of these and misbehave later.
_ROLE_FLAGS = ("--encoder-only", "--disaggregation-mode")
_FORBIDDEN: Mapping[Role, Mapping[str, str]] = {
    Role.ENCODE: {
        "--language-only": "an encode worker holds no language model",
        "--encoder-urls": "encoders are named to prefill workers, not to each other",
        "--disaggregation-bootstrap-port": "an encode worker moves no KV; name this port to the prefill worker",
    },
    Role.PREFILL: {
        "--encoder-register-urls": "only encode workers register themselves; a prefill worker takes --encoder-urls",
    },
    Role.DECODE: {
        "--encoder-urls": "decode never talks to encoders; give --encoder-urls to the prefill workers",
        "--encoder-register-urls": "only encode workers register themselves",
        "--language-only": "decode would wait for embeddings that nobody sends it",
    },
    Role.MIXED: {
        "--encoder-urls": "a mixed worker encodes by itself; use --role prefill for separate encoders",
        "--encoder-register-urls": "only encode workers register themselves",
    },
}


_RECEIVER_ENV = "SGLANG_ENCODER_MM_RECEIVER_MODE"
_NATIVE_REFS_ENV: Mapping[Role, Mapping[str, str]] = {
    # The second names our receiver (hooks/native_receiver.py) instead of upstream's.
    Role.PREFILL: {"SGL_EPD_NATIVE_REFS": "1", _RECEIVER_ENV: "sgl-epd"},
    Role.DECODE: {"SGL_EPD_NATIVE_REFS": "1"},
}


def make_plan(
    role: Role, argv: Sequence[str], machine: Machine, environ: Mapping[str, str], *, native_refs: bool = False
) -> WorkerPlan:
    """Complete `argv` (SGLang flags as the user gave them) for `role`. Raises `ConfigError`.

    `native_refs`: the worker takes references to encoded items in place of images (`docs/native-path.md`).
    """
    _check(role, argv)
    if native_refs:
        _check_native_refs(role, argv, environ)
    device = value(argv, "--device")
    on_cpu = device == "cpu" or (device is None and not machine.has_gpu)
    port = _port(argv, "--port") or machine.free_port(DEFAULT_PORT, ())
    full = complete(argv, [("--port", str(port)), *_role_defaults(role, argv), *_shared_defaults(on_cpu, role)])
    bootstrap_port = None
    if role is Role.PREFILL:
        full, bootstrap_port = _with_prefill_ports(full, port, machine)
    env = _environment(role, argv, machine, on_cpu)
    if native_refs:
        env.update(_NATIVE_REFS_ENV[role])
    return WorkerPlan(role, tuple(full), {k: v for k, v in env.items() if k not in environ}, port, bootstrap_port)


def _check(role: Role, argv: Sequence[str]) -> None:
    for flag in _ROLE_FLAGS:
        if given(argv, flag):
            raise ConfigError(f"{flag} follows from --role {role}; leave it out (or choose another --role)")
    for flag, reason in _FORBIDDEN[role].items():
        if given(argv, flag):
            raise ConfigError(f"{flag} does not go with --role {role}: {reason}")
    if not given(argv, "--model-path", "--model"):
        raise ConfigError("--model-path is missing: name a local folder or a Hugging Face model")
    _check_model(role, value(argv, "--model-path", "--model"))


def _check_native_refs(role: Role, argv: Sequence[str], environ: Mapping[str, str]) -> None:
    if role not in _NATIVE_REFS_ENV:
        raise ConfigError(f"--native-refs does not go with --role {role}: only prefill and decode take references")
    for name, needed in _NATIVE_REFS_ENV[role].items():
        if environ.get(name, needed) != needed:
            raise ConfigError(f"--native-refs needs {name}={needed}, but it is {environ[name]!r}; unset it")
    if role is Role.PREFILL and not given(argv, "--encoder-urls", "--language-only"):
        raise ConfigError("--native-refs needs --encoder-urls: a prefill worker fetches from no other encoders")


def _check_model(role: Role, model_path: str | None) -> None:
    """Catches the two usual mistakes with a local folder before SGLang spends its start-up time on it."""
    if model_path is None:
        raise ConfigError("--model-path needs a value: a local folder or a Hugging Face model")
    folder = Path(model_path)
    if not folder.exists():
        looks_local = model_path.startswith((".", "/", "~")) or model_path.count("/") > 1
        if looks_local:
            raise ConfigError(f"--model-path {model_path}: there is no such folder")
        return
    if role is Role.ENCODE and not any(key in _config(folder) for key in _ENCODER_CONFIGS):
        raise ConfigError(f"--role encode: {model_path} ({model_arch(model_path)}) has no vision or audio part")


def _config(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--model-path {folder}: cannot read config.json ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} is not a model configuration")
    return loaded


def model_arch(model_path: str) -> str | None:
    """The architecture that a local model folder names, or None if `model_path` is no local folder."""
    folder = Path(model_path)
    if not folder.is_dir():
        return None
    archs = _config(folder).get("architectures")
    return str(archs[0]) if isinstance(archs, list) and archs else None


def _port(argv: Sequence[str], flag: str) -> int | None:
    text = value(argv, flag)
    if text is None:
        if given(argv, flag):
            raise ConfigError(f"{flag} needs a value")
        return None
    if not text.isdigit() or not 0 < int(text) <= MAX_PORT:
        raise ConfigError(f"{flag} {text}: a port is a number from 1 to {MAX_PORT}")
    return int(text)


def _role_defaults(role: Role, argv: Sequence[str]) -> list[tuple[str, ...]]:
    if role is Role.ENCODE:
        return [("--encoder-only",)]
    if role is Role.MIXED:
        return []
    result: list[tuple[str, ...]] = [("--disaggregation-mode", role.value)]
    if role is Role.PREFILL and given(argv, "--encoder-urls"):
        # Without encoders a language-only prefill would encode by itself and only warn about it.
        result.append(("--language-only",))
    return result


def _shared_defaults(on_cpu: bool, role: Role) -> list[tuple[str, ...]]:
    defaults: list[tuple[str, ...]] = [("--enable-metrics",)]
    if role is not Role.ENCODE:
        # Without it an idle scheduler spins a core; hooks/idle_sleep.py keeps it from delaying a request.
        defaults.append(("--sleep-on-idle",))
    if role in (Role.PREFILL, Role.DECODE):
        defaults.append(("--disaggregation-transfer-backend", "mooncake_tcp" if on_cpu else "mooncake"))
    if not on_cpu:
        return defaults
    defaults += [
        ("--device", "cpu"),
        ("--dtype", "float32"),
        ("--attention-backend", "torch_native"),
        ("--disable-overlap-schedule",),
        ("--mem-fraction-static", "0.1"),
        ("--max-total-tokens", "16384"),
        ("--skip-server-warmup",),
    ]
    if role in (Role.ENCODE, Role.PREFILL):
        # Upstream's Mooncake embedding receiver allocates CUDA memory.
        defaults.append(("--encoder-transfer-backend", "zmq_to_scheduler"))
    if role is Role.DECODE:
        # The default backup pool registers its host memory with CUDA.
        defaults.append(("--disaggregation-decode-retraction-backup", "cpu_tensor"))
    return defaults


def _with_prefill_ports(argv: Sequence[str], port: int, machine: Machine) -> tuple[list[str], int]:
    """A prefill worker listens on two more ports; two of them on one host must not share either."""
    bootstrap = _port(argv, "--disaggregation-bootstrap-port") or machine.free_port(DEFAULT_BOOTSTRAP_PORT, (port,))
    encoders = _port(argv, "--encoder-bootstrap-port") or machine.free_port(
        DEFAULT_ENCODER_BOOTSTRAP_PORT, (port, bootstrap)
    )
    if len({port, bootstrap, encoders}) < 3:
        raise ConfigError(
            f"--port {port}, --disaggregation-bootstrap-port {bootstrap} and --encoder-bootstrap-port {encoders} "
            "must be three different ports"
        )
    ports = [("--disaggregation-bootstrap-port", str(bootstrap)), ("--encoder-bootstrap-port", str(encoders))]
    return complete(argv, ports), bootstrap


def _environment(role: Role, argv: Sequence[str], machine: Machine, on_cpu: bool) -> dict[str, str]:
    env = {"SGL_EPD_ROLE": role.value}
    arch = model_arch(value(argv, "--model-path", "--model") or "")
    if arch is not None:
        env["SGL_EPD_MODEL_ARCH"] = arch
        env["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "sgl_epd_srt.wanted_models"
    if role is Role.DECODE:
        # Until then requests wait for a prefill worker that has been replaced (hooks/prefill_restart.py).
        env["SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"] = "2"
    if on_cpu:
        env |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": machine.cpus,
            "OMP_NUM_THREADS": "1",
            "MC_FORCE_TCP": "1",
            # Compiling for a CPU costs the first request 20 s and more.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return env
