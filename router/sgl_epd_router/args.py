"""`RouterConfig`: all flags of `python -m sgl_epd.launch_router`, checked for contradictions before anything starts."""

from __future__ import annotations

import dataclasses

from sgl_epd_router.flags import ListenFlags, PolicyFlags, PoolFlags


@dataclasses.dataclass(frozen=True)
class RouterConfig(PolicyFlags, PoolFlags, ListenFlags):
    """Immutable once parsed; the same names on the command line, in YAML and in the environment."""
