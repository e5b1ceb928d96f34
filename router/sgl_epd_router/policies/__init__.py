"""Which worker of a pool takes a request. One policy a file; each sees read-only `WorkerView`s and decides at once."""

from __future__ import annotations

from sgl_epd_router.policies.base import Choice, Policy, PolicyConfig
from sgl_epd_router.policies.factory import POLICY_NAMES, make_policy

__all__ = ["POLICY_NAMES", "Choice", "Policy", "PolicyConfig", "make_policy"]
