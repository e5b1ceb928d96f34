"""Policies by the names that the flags use."""

from __future__ import annotations

from collections.abc import Callable

from sgl_epd.errors import ConfigError
from sgl_epd_router.policies.base import Policy, PolicyConfig
from sgl_epd_router.policies.bucket import Bucket
from sgl_epd_router.policies.cache_aware import CacheAware
from sgl_epd_router.policies.consistent_hashing import ConsistentHashing
from sgl_epd_router.policies.least_load import LeastLoad
from sgl_epd_router.policies.power_of_two import PowerOfTwo
from sgl_epd_router.policies.random import Random
from sgl_epd_router.policies.round_robin import RoundRobin

_POLICIES: dict[str, Callable[[PolicyConfig], Policy]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "power_of_two": PowerOfTwo,
    "least_load": LeastLoad,
    "cache_aware": CacheAware,
    "consistent_hashing": ConsistentHashing,
    "bucket": Bucket,
}
POLICY_NAMES = tuple(_POLICIES)


def make_policy(name: str, config: PolicyConfig) -> Policy:
    if name not in _POLICIES:
        raise ConfigError(f"unknown policy {name!r}; choose one of {', '.join(POLICY_NAMES)}")
    return _POLICIES[name](config)
