"""`RouterConfig`: all flags of `python -m sgl_epd.launch_router`, checked for contradictions before anything starts."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sgl_epd import config as flags_config
from sgl_epd.errors import ConfigError
from sgl_epd_router.flags import ListenFlags, PolicyFlags, PoolFlags
from sgl_epd_router.flags_control import (
    AdmissionFlags,
    BreakerFlags,
    DeadlineFlags,
    HealthFlags,
    OperationFlags,
    RetryFlags,
    SecurityFlags,
)

PROG = "python -m sgl_epd.launch_router"
DESCRIPTION = """\
Routes OpenAI and SGLang requests over encode, prefill and decode workers, or over aggregated ones.

  three stages:  --epd-disaggregation --encode http://e:30000 --prefill http://p:30001 8998 --decode http://d:30002
  two stages:    --pd-disaggregation --prefill http://p:30001 8998 --decode http://d:30002
  aggregated:    --worker-urls http://w0:30000 http://w1:30000

Workers may be down at start, and may be added, drained and removed while it runs (POST /workers)."""

_REFUSED = {
    "--mini-lb": "this router takes its place; leave the flag out",
    "--service-discovery": "workers register themselves instead: start them with --register http://ROUTER:PORT",
    "--enable-igw": "several models need no flag: give workers a model_id in POST /workers",
    "--dp-aware": "SGLang balances its data-parallel ranks itself",
    "--model-path": "the router never loads a model or tokenizer",
    "--tokenizer-path": "the router never loads a model or tokenizer",
}


@dataclasses.dataclass(frozen=True)
class RouterConfig(
    OperationFlags,
    SecurityFlags,
    AdmissionFlags,
    HealthFlags,
    BreakerFlags,
    RetryFlags,
    DeadlineFlags,
    PolicyFlags,
    PoolFlags,
    ListenFlags,
):
    """Immutable once parsed; the same names on the command line, in YAML and in the environment."""

    def __post_init__(self) -> None:
        problem = next(_problems(self), None)
        if problem:
            raise ConfigError(problem)


def parse_args(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> RouterConfig:
    """Raises `ConfigError` with a sentence that helps; `--help` prints and exits 0."""
    for word in argv:
        reason = _REFUSED.get(word.partition("=")[0])
        if reason:
            raise ConfigError(f"{word.partition('=')[0]} is not supported: {reason}")
    return flags_config.parse(RouterConfig, argv, prog=PROG, description=DESCRIPTION, environ=environ)


def _problems(config: RouterConfig) -> Iterator[str]:
    """What is wrong or contradictory, most basic first."""
    yield from _pool_problems(config)
    yield from _number_problems(config)
    yield from _security_problems(config)


def _pool_problems(config: RouterConfig) -> Iterator[str]:
    if config.epd_disaggregation and config.pd_disaggregation:
        yield "--epd-disaggregation and --pd-disaggregation exclude each other; the first includes the second"
    if config.pd_disaggregation and config.encode:
        yield "--encode needs --epd-disaggregation instead of --pd-disaggregation"
    staged = config.epd_disaggregation or config.pd_disaggregation
    if not staged and (config.prefill or config.decode):
        yield "--prefill and --decode need --pd-disaggregation (or --epd-disaggregation, with encoders)"
    if config.encode and not (config.epd_disaggregation or config.worker_urls):
        yield "--encode needs --epd-disaggregation (with --prefill and --decode), or aggregated --worker-urls"
    for flag, args in (("--encode", config.encode), ("--decode", config.decode)):
        if any(arg.encoder_port for arg in args):
            yield f"{flag} takes URL [PORT]; a second port belongs to --prefill"
    urls = [arg.url for arg in (*config.encode, *config.prefill, *config.decode)] + list(config.worker_urls)
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        yield f"{twice[0]} is named twice"


def _number_problems(config: RouterConfig) -> Iterator[str]:
    at_least = {
        "workers": 1, "max_payload_size": 1, "queue_size": 0, "retry_max_retries": 0, "retry_initial_backoff_ms": 0,
        "retry_max_backoff_ms": 0, "retry_backoff_multiplier": 1, "cb_failure_threshold": 1, "cb_success_threshold": 1,
        "health_failure_threshold": 1, "health_success_threshold": 1, "balance_abs_threshold": 0,
        "balance_rel_threshold": 1, "max_tree_size": 1, "hash_load_factor": 1, "max_image_pixels": 0,
        "load_poll_interval_secs": 0, "shutdown_grace_period_secs": 0, "retry_budget_ratio": 0,
        "retry_budget_per_sec": 0, "priority_step_secs": 0, "queue_timeout_secs": 0, "rate_limit_burst": 1,
    }  # fmt: skip
    for name, least in at_least.items():
        value = getattr(config, name)
        if value is not None and value < least:
            yield f"{flags_config.flag(name)} must be at least {least}, not {value}"
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        timed = field.name.endswith(("timeout_secs", "interval_secs", "duration_secs", "ttl_secs", "per_second"))
        if timed and field.name not in at_least and value is not None and value <= 0:
            yield f"{flags_config.flag(field.name)} must be more than 0, not {value}"
    for name in ("port", "prometheus_port", "encoder_bootstrap_port"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < 65536:
            yield f"{flags_config.flag(name)} must be a port number, not {value}"
    for name in ("cache_threshold", "retry_jitter_factor"):
        if not 0 <= getattr(config, name) <= 1:
            yield f"{flags_config.flag(name)} must lie between 0 and 1, not {getattr(config, name)}"
    if config.max_concurrent_requests < 1 and config.max_concurrent_requests != -1:
        yield f"--max-concurrent-requests must be positive, or -1 for no limit, not {config.max_concurrent_requests}"
    if config.rate_limit_burst is not None and config.rate_limit_tokens_per_second is None:
        yield "--rate-limit-burst needs --rate-limit-tokens-per-second"
    if list(config.prometheus_duration_buckets) != sorted(set(config.prometheus_duration_buckets)):
        yield "--prometheus-duration-buckets must ascend"


def _security_problems(config: RouterConfig) -> Iterator[str]:
    pairs = (("tls_cert_path", "tls_key_path"), ("client_cert_path", "client_key_path"))
    for cert, key in pairs:
        if bool(getattr(config, cert)) != bool(getattr(config, key)):
            yield f"{flags_config.flag(cert)} and {flags_config.flag(key)} belong together"
    if config.tls_client_ca_path and not config.tls_cert_path:
        yield "--tls-client-ca-path needs --tls-cert-path and --tls-key-path"
    for name in ("tls_cert_path", "tls_key_path", "tls_client_ca_path", "client_cert_path", "client_key_path",
                 "ca_cert_path"):  # fmt: skip
        path = getattr(config, name)
        if path and not Path(path).is_file():
            yield f"{flags_config.flag(name)}: there is no file {path}"
    for entry in config.control_plane_api_keys:
        if len(entry.split(":", 3)) != 4:
            yield "--control-plane-api-keys: each key must read ID:NAME:ROLE:KEY"
    for network in config.worker_networks:
        if network != "*" and not _is_network(network):
            yield f"--worker-networks: {network!r} is not a network such as 10.0.0.0/8"


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
