"""The router's flags, a frozen dataclass a group; names and defaults are those of `sglang_router` where it has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sgl_epd.config import option
from sgl_epd_router.worker import normalize_url

POLICIES = ("random", "round_robin", "power_of_two", "least_load", "cache_aware", "consistent_hashing", "bucket")


@dataclasses.dataclass(frozen=True)
class WorkerArg:
    """`URL [BOOTSTRAP_PORT|none] [ENCODER_BOOTSTRAP_PORT|none]`."""

    url: str
    bootstrap_port: int | None = None
    encoder_port: int | None = None


def parse_worker(parts: Sequence[str]) -> WorkerArg:
    """One occurrence of `--encode`, `--prefill` or `--decode`."""
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"expected URL [PORT|none] [PORT|none], got {' '.join(parts)!r}")
    ports = [_port(part) for part in parts[1:]] + [None, None]
    return WorkerArg(normalize_url(parts[0]), ports[0], ports[1])


def _port(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port number (or 'none')")
    return int(text)


@dataclasses.dataclass(frozen=True)
class ListenFlags:
    host: str = option("0.0.0.0", "address to listen on", group="listen")
    port: int = option(30000, "port to listen on", group="listen")
    workers: int = option(1, "router processes that share the port", group="listen")
    max_payload_size: int = option(512 * 2**20, "largest request body, bytes", group="listen", metavar="BYTES")
    request_timeout_secs: float = option(1800.0, "a request's deadline, all stages together", group="listen")
    shutdown_grace_period_secs: float = option(180.0, "how long SIGTERM waits for requests in flight", group="listen")
    request_id_headers: tuple[str, ...] = option(
        ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
        "headers that may carry a request id, in order of preference",
        group="listen",
        nargs="+",
    )
    cors_allowed_origins: tuple[str, ...] = option((), "origins allowed by CORS", group="listen", nargs="*")


@dataclasses.dataclass(frozen=True)
class PoolFlags:
    worker_urls: tuple[str, ...] = option(
        (), "aggregated workers (each serves whole requests)", group="worker pools", nargs="*", metavar="URL"
    )
    epd_disaggregation: bool = option(False, "encode, prefill and decode on separate workers", group="worker pools")
    pd_disaggregation: bool = option(False, "prefill and decode on separate workers", group="worker pools")
    encode: tuple[WorkerArg, ...] = option(
        (),
        "an encode worker; repeat for more",
        group="worker pools",
        nargs="+",
        repeat=True,
        metavar="URL",
        parse=parse_worker,
    )
    prefill: tuple[WorkerArg, ...] = option(
        (),
        "a prefill worker: URL [BOOTSTRAP_PORT|none] [ENCODER_BOOTSTRAP_PORT|none]; repeat for more",
        group="worker pools",
        nargs="+",
        repeat=True,
        metavar="URL",
        parse=parse_worker,
    )
    decode: tuple[WorkerArg, ...] = option(
        (),
        "a decode worker; repeat for more",
        group="worker pools",
        nargs="+",
        repeat=True,
        metavar="URL",
        parse=parse_worker,
    )
    encoder_bootstrap_port: int = option(
        8997, "port of a prefill worker's encoder list where --prefill names none", group="worker pools"
    )
    encode_dispatch: str = option(
        "prefill",
        "who sends media to encoders: 'prefill' works with unmodified SGLang workers, 'router' needs ours",
        group="worker pools",
        choices=("prefill", "router"),
    )
    worker_api_key: str | None = option(
        None, "key that the router sends to workers that name none of their own", group="worker pools", secret=True
    )


@dataclasses.dataclass(frozen=True)
class PolicyFlags:
    policy: str = option(
        "cache_aware", "policy of aggregated workers and of pools without one", group="policies", choices=POLICIES
    )
    encode_policy: str | None = option(
        None, "policy of the encode pool (default: consistent_hashing)", group="policies", choices=POLICIES
    )
    prefill_policy: str | None = option(
        None, "policy of the prefill pool (default: --policy)", group="policies", choices=POLICIES
    )
    decode_policy: str | None = option(
        None, "policy of the decode pool (default: least_load)", group="policies", choices=POLICIES
    )
    cache_threshold: float = option(0.3, "least matching share of a prompt that is followed", group="policies")
    balance_abs_threshold: int = option(64, "imbalance in requests that overrides the cache", group="policies")
    balance_rel_threshold: float = option(1.5, "the same as a factor; both must be passed", group="policies")
    max_tree_size: int = option(2**26, "bytes of prompt that cache_aware remembers", group="policies")
    hash_load_factor: float = option(
        1.25, "consistent_hashing: most load of one worker, as a factor of the mean", group="policies"
    )
    bucket_adjust_interval_secs: float = option(
        5.0, "bucket: how often the length limits follow the traffic", group="policies"
    )
