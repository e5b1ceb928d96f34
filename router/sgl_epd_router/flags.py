"""The router's flags, a frozen dataclass a group; names and defaults are those of `sglang_router` where it has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sgl_epd.config import option
from sgl_epd.errors import RequestError
from sgl_epd_router.policies import POLICY_NAMES
from sgl_epd_router.worker import normalize_url

_LISTEN = "listening"
_POOLS = "worker pools"
_POLICIES = "policies"


@dataclasses.dataclass(frozen=True)
class WorkerArg:
    """`URL [BOOTSTRAP_PORT|none] [ENCODER_BOOTSTRAP_PORT|none]`."""

    url: str
    bootstrap_port: int | None = None
    encoder_port: int | None = None


def parse_worker(given: str | Sequence[str]) -> WorkerArg:
    """One occurrence of `--encode`, `--prefill` or `--decode`."""
    parts = given.split() if isinstance(given, str) else given
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"expected URL [PORT|none] [PORT|none], got {' '.join(parts)!r}")
    ports = [parse_port(part) for part in parts[1:]] + [None, None]
    return WorkerArg(parse_url(parts[0]), ports[0], ports[1])


def parse_url(text: str) -> str:
    try:
        return normalize_url(text)
    except RequestError as error:
        raise ValueError(error.message) from error


def parse_port(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port number (or 'none')")
    return int(text)


@dataclasses.dataclass(frozen=True)
class ListenFlags:
    host: str = option("0.0.0.0", "address to listen on", group=_LISTEN)
    port: int = option(30000, "port to listen on", group=_LISTEN)
    workers: int = option(1, "router processes that share the port", group=_LISTEN)
    max_payload_size: int = option(512 * 2**20, "largest request body, bytes", group=_LISTEN, metavar="BYTES")
    shutdown_grace_period_secs: float = option(180.0, "how long SIGTERM waits for running requests", group=_LISTEN)
    request_id_headers: tuple[str, ...] = option(
        ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
        "headers that may carry a request's id, in order of preference",
        group=_LISTEN,
        nargs="+",
        metavar="NAME",
    )
    cors_allowed_origins: tuple[str, ...] = option((), "origins that browsers may call from", group=_LISTEN, nargs="*")


@dataclasses.dataclass(frozen=True)
class PoolFlags:
    worker_urls: tuple[str, ...] = option(
        (), "aggregated workers, each serving whole requests", group=_POOLS, nargs="*", metavar="URL", parse=parse_url
    )
    epd_disaggregation: bool = option(False, "encode, prefill and decode on separate workers", group=_POOLS)
    pd_disaggregation: bool = option(False, "prefill and decode on separate workers", group=_POOLS)
    encode: tuple[WorkerArg, ...] = option(
        (),
        "an encode worker; repeat for more",
        group=_POOLS,
        repeat=True,
        metavar="URL",
        parse=parse_worker,
    )
    prefill: tuple[WorkerArg, ...] = option(
        (),
        "a prefill worker: URL [BOOTSTRAP_PORT|none] [ENCODER_BOOTSTRAP_PORT|none]; repeat for more",
        group=_POOLS,
        nargs="+",
        repeat=True,
        metavar=("URL", "PORT"),
        parse=parse_worker,
    )
    decode: tuple[WorkerArg, ...] = option(
        (),
        "a decode worker; repeat for more",
        group=_POOLS,
        repeat=True,
        metavar="URL",
        parse=parse_worker,
    )
    encode_dispatch: str = option(
        "prefill",
        "who sends media to the encoders: 'prefill' works with unmodified SGLang workers, 'router' needs ours",
        group=_POOLS,
        choices=("prefill", "router"),
    )
    encoder_bootstrap_port: int = option(
        8997, "port of a prefill worker's encoder list where --prefill names none", group=_POOLS
    )
    encoder_sync_interval_secs: float = option(
        2.0, "how often each prefill worker's encoder list is compared with ours", group=_POOLS
    )
    worker_api_key: str | None = option(
        None, "key that the router sends to its workers (default: the first --api-key)", group=_POOLS, secret=True
    )
    worker_heartbeat_ttl_secs: float = option(
        600.0, "silence after which a self-registered worker is forgotten", group=_POOLS
    )


@dataclasses.dataclass(frozen=True)
class PolicyFlags:
    policy: str = option(
        "cache_aware", "policy of aggregated and of prefill workers", group=_POLICIES, choices=POLICY_NAMES
    )
    encode_policy: str = option("consistent_hashing", "policy of encode workers", group=_POLICIES, choices=POLICY_NAMES)
    prefill_policy: str | None = option(
        None, "policy of prefill workers (default: --policy)", group=_POLICIES, choices=POLICY_NAMES
    )
    decode_policy: str = option("least_load", "policy of decode workers", group=_POLICIES, choices=POLICY_NAMES)
    cache_threshold: float = option(0.3, "cache_aware: least share of a prompt that must match", group=_POLICIES)
    balance_abs_threshold: int = option(
        64, "cache_aware, bucket: imbalance in requests that overrides them", group=_POLICIES
    )
    balance_rel_threshold: float = option(1.5, "the same as a factor; both must be exceeded", group=_POLICIES)
    max_tree_size: int = option(2**26, "cache_aware: bytes of prompts that are remembered", group=_POLICIES)
    hash_load_factor: float = option(
        1.25, "consistent_hashing: most work of one worker, as a factor of the mean", group=_POLICIES
    )
    bucket_adjust_interval_secs: float = option(5.0, "bucket: how often the limits follow the traffic", group=_POLICIES)
    load_poll_interval_secs: float = option(
        1.0, "how often workers are asked for their load (0: never)", group=_POLICIES
    )
    load_stream: bool = option(True, "do not subscribe to the ZMQ load streams that workers offer", group=_POLICIES)
