"""What every request handler of the router shares."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from sgl_epd.net.client import HttpClient
from sgl_epd_router.args import RouterConfig
from sgl_epd_router.registry import Registry


@dataclasses.dataclass(slots=True)
class RouterContext:
    """Made once per process by `app`."""

    config: RouterConfig
    registry: Registry
    client: HttpClient
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
