"""From `RouterConfig` to the pure objects that it describes."""

from __future__ import annotations

from collections.abc import Iterator

from sgl_epd_router.args import RouterConfig
from sgl_epd_router.breaker import BreakerConfig
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.flags import WorkerArg
from sgl_epd_router.health import HealthConfig
from sgl_epd_router.policies import PolicyConfig, make_policy
from sgl_epd_router.registry import Registry, RegistryConfig
from sgl_epd_router.worker import Role, WorkerSpec


def build_registry(config: RouterConfig, board: CounterBoard) -> Registry:
    """All four pools, with nobody in them yet."""
    policies = {role: make_policy(name, policy_config(config)) for role, name in policy_names(config).items()}
    return Registry(policies, registry_config(config), board)


def add_named_workers(registry: Registry, config: RouterConfig, now: float) -> None:
    """Add the workers that the flags name."""
    for spec in worker_specs(config):
        registry.add(spec, now)


def registry_config(config: RouterConfig) -> RegistryConfig:
    return RegistryConfig(
        breaker=BreakerConfig(
            failure_threshold=config.cb_failure_threshold,
            success_threshold=config.cb_success_threshold,
            timeout_s=config.cb_timeout_duration_secs,
            window_s=config.cb_window_duration_secs,
            enabled=not config.disable_circuit_breaker,
        ),
        health=HealthConfig(
            failure_threshold=config.health_failure_threshold,
            success_threshold=config.health_success_threshold,
            timeout_s=config.health_check_timeout_secs,
            interval_s=config.health_check_interval_secs,
            endpoint=config.health_check_endpoint,
            enabled=not config.disable_health_check,
        ),
        heartbeat_ttl_s=config.worker_heartbeat_ttl_secs,
    )


def policy_names(config: RouterConfig) -> dict[Role, str]:
    return {
        Role.ENCODE: config.encode_policy,
        Role.PREFILL: config.prefill_policy or config.policy,
        Role.DECODE: config.decode_policy,
        Role.REGULAR: config.policy,
    }


def policy_config(config: RouterConfig) -> PolicyConfig:
    return PolicyConfig(
        cache_threshold=config.cache_threshold,
        balance_abs_threshold=config.balance_abs_threshold,
        balance_rel_threshold=config.balance_rel_threshold,
        max_tree_size=config.max_tree_size,
        load_factor=config.hash_load_factor,
        bucket_adjust_interval_s=config.bucket_adjust_interval_secs,
    )


def worker_key(config: RouterConfig) -> str | None:
    """What the router shows to workers that name no key of their own: as upstream, the clients' key by default."""
    return config.worker_api_key or (config.api_key[0] if config.api_key else None)


def worker_specs(config: RouterConfig) -> Iterator[WorkerSpec]:
    key = worker_key(config)
    for url in config.worker_urls:
        yield WorkerSpec(url, Role.REGULAR, encoder_port=config.encoder_bootstrap_port, api_key=key)
    for arg in config.encode:
        yield WorkerSpec(arg.url, Role.ENCODE, api_key=key)
    for arg in config.prefill:
        yield _prefill_spec(arg, config)
    for arg in config.decode:
        yield WorkerSpec(arg.url, Role.DECODE, api_key=key)


def _prefill_spec(arg: WorkerArg, config: RouterConfig) -> WorkerSpec:
    return WorkerSpec(
        arg.url,
        Role.PREFILL,
        bootstrap_port=arg.bootstrap_port,
        encoder_port=arg.encoder_port or config.encoder_bootstrap_port,
        api_key=worker_key(config),
    )
