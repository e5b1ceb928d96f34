"""Small stand-ins that the router's unit tests share."""

from __future__ import annotations

import dataclasses

from sgl_epd_router.health import HealthConfig
from sgl_epd_router.policies import PolicyConfig, make_policy
from sgl_epd_router.registry import Registry, RegistryConfig
from sgl_epd_router.worker import Role, WorkerSpec


@dataclasses.dataclass
class View:
    """A `WorkerView` with nothing behind it."""

    id: str
    incarnation: int = 0
    requests: float = 0.0
    work: float = 0.0


def views(count: int, work: list[float] | None = None) -> list[View]:
    loads = work or [0.0] * count
    return [View(f"w{i:03}", incarnation=i + 1, requests=loads[i], work=loads[i]) for i in range(count)]


def make_registry(policy: str = "least_load", config: RegistryConfig | None = None) -> Registry:
    policies = {role: make_policy(policy, PolicyConfig(seed=1)) for role in Role}
    return Registry(policies, config or RegistryConfig(health=HealthConfig(enabled=False)))


def spec(port: int, role: Role = Role.PREFILL, **kwargs: object) -> WorkerSpec:
    return WorkerSpec(f"http://10.0.0.1:{port}", role, **kwargs)  # type: ignore[arg-type]
