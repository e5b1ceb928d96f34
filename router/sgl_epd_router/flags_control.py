"""The router's flags that decide about failure, admission, security and operation."""

from __future__ import annotations

import dataclasses

from sgl_epd.config import option

_DEADLINES = "deadlines"
_RETRIES = "retries"
_BREAKER = "circuit breaker"
_HEALTH = "health checks"
_ADMISSION = "admission"
_SECURITY = "security"
_OPERATION = "operation"


@dataclasses.dataclass(frozen=True)
class DeadlineFlags:
    request_timeout_secs: float = option(1800.0, "a request's deadline, all stages together", group=_DEADLINES)
    connect_timeout_secs: float = option(5.0, "to connect to a worker", group=_DEADLINES)
    encode_timeout_secs: float = option(180.0, "for one media item's encoding", group=_DEADLINES)
    prefill_timeout_secs: float = option(300.0, "from sending a request to the end of its prefill", group=_DEADLINES)
    first_token_timeout_secs: float = option(
        600.0, "from sending a request to the first byte of a streamed answer", group=_DEADLINES
    )
    stream_idle_timeout_secs: float = option(300.0, "between two pieces of a streamed answer", group=_DEADLINES)
    stream_body_stall_timeout_secs: float = option(300.0, "between two pieces of a request's body", group=_DEADLINES)
    upstream_pool_idle_timeout_secs: float = option(
        3.0, "how long an idle connection to a worker is kept; below its keep-alive", group=_DEADLINES
    )


@dataclasses.dataclass(frozen=True)
class RetryFlags:
    retry_max_retries: int = option(5, "retries of one request", group=_RETRIES)
    retry_initial_backoff_ms: float = option(50.0, "wait before the first retry", group=_RETRIES)
    retry_max_backoff_ms: float = option(30_000.0, "longest wait between retries", group=_RETRIES)
    retry_backoff_multiplier: float = option(1.5, "growth of the wait", group=_RETRIES)
    retry_jitter_factor: float = option(0.2, "random part of each wait", group=_RETRIES)
    retry_budget_ratio: float = option(
        0.2, "retries per request, over all requests, so that an outage is not multiplied", group=_RETRIES
    )
    retry_budget_per_sec: float = option(10.0, "retries per second that are always allowed", group=_RETRIES)
    disable_retries: bool = option(False, "never retry", group=_RETRIES)


@dataclasses.dataclass(frozen=True)
class BreakerFlags:
    cb_failure_threshold: int = option(10, "failures that open a worker's breaker", group=_BREAKER)
    cb_success_threshold: int = option(3, "successful trials that close it again", group=_BREAKER)
    cb_timeout_duration_secs: float = option(60.0, "time until the first trial", group=_BREAKER)
    cb_window_duration_secs: float = option(120.0, "window in which failures count together", group=_BREAKER)
    disable_circuit_breaker: bool = option(False, "keep sending to failing workers", group=_BREAKER)


@dataclasses.dataclass(frozen=True)
class HealthFlags:
    health_failure_threshold: int = option(3, "failed checks in a row that take a worker out", group=_HEALTH)
    health_success_threshold: int = option(2, "good checks in a row that bring it back", group=_HEALTH)
    health_check_timeout_secs: float = option(5.0, "how long a check may take", group=_HEALTH)
    health_check_interval_secs: float = option(
        60.0, "between checks of a healthy worker; a failing one is checked within seconds", group=_HEALTH
    )
    health_check_endpoint: str = option("/health", "path of the check", group=_HEALTH)
    disable_health_check: bool = option(False, "take every worker for healthy", group=_HEALTH)


@dataclasses.dataclass(frozen=True)
class AdmissionFlags:
    max_concurrent_requests: int = option(-1, "requests in flight; -1 is no limit", group=_ADMISSION)
    queue_size: int = option(100, "requests that wait when the limit is reached; more get 429", group=_ADMISSION)
    queue_timeout_secs: float = option(60.0, "longest wait there; then 408", group=_ADMISSION)
    priority_step_secs: float = option(
        10.0, "waiting time that one level of a request's `priority` is worth", group=_ADMISSION
    )
    rate_limit_tokens_per_second: float | None = option(
        None, "requests per second of one API key (of one client address where there are no keys)", group=_ADMISSION
    )
    rate_limit_burst: int | None = option(
        None, "requests that a key may send at once (default: one second's worth)", group=_ADMISSION
    )
    max_image_pixels: int = option(
        178_956_970, "largest image, width x height; the default is Pillow's own limit; 0 is none", group=_ADMISSION
    )


@dataclasses.dataclass(frozen=True)
class SecurityFlags:
    api_key: tuple[str, ...] = option(
        (), "keys that clients must present (Authorization: Bearer)", group=_SECURITY, nargs="+", secret=True
    )
    admin_api_key: str | None = option(
        None, "key for control routes; without it they take any --api-key", group=_SECURITY, secret=True
    )
    control_plane_api_keys: tuple[str, ...] = option(
        (), "more keys for control routes, each ID:NAME:ROLE:KEY", group=_SECURITY, nargs="+", secret=True
    )
    worker_networks: tuple[str, ...] = option(
        (), "networks (CIDR) that workers may be added from besides private ones and loopback; '*' for any",
        group=_SECURITY,
        nargs="+",
    )  # fmt: skip
    tls_cert_path: str | None = option(None, "certificate for clients, PEM", group=_SECURITY)
    tls_key_path: str | None = option(None, "its key, PEM", group=_SECURITY)
    tls_client_ca_path: str | None = option(None, "demand client certificates of this CA", group=_SECURITY)
    client_cert_path: str | None = option(None, "the router's own certificate for workers, PEM", group=_SECURITY)
    client_key_path: str | None = option(None, "its key, PEM", group=_SECURITY)
    ca_cert_path: str | None = option(None, "CA of the workers' certificates, PEM", group=_SECURITY)


@dataclasses.dataclass(frozen=True)
class OperationFlags:
    prometheus_host: str = option("0.0.0.0", "address of the metrics port", group=_OPERATION)
    prometheus_port: int | None = option(
        None, "port for /metrics besides the main one (default: 29000 if it is free; 0: none)", group=_OPERATION
    )
    prometheus_duration_buckets: tuple[float, ...] = option(
        (), "bounds of the duration histograms, seconds", group=_OPERATION, nargs="+"
    )
    log_level: str = option(
        "info", "least level that is logged", group=_OPERATION, choices=("debug", "info", "warning", "warn", "error")
    )
    log_format: str = option("text", "format of a log line", group=_OPERATION, choices=("text", "json"))
    log_dir: str | None = option(None, "also log to a file in this directory", group=_OPERATION)
    access_log: bool = option(False, "log each request", group=_OPERATION)
    enable_trace: bool = option(False, "send OpenTelemetry traces; needs the [tracing] extra", group=_OPERATION)
    otlp_traces_endpoint: str = option("localhost:4317", "where to send them (OTLP, gRPC)", group=_OPERATION)
