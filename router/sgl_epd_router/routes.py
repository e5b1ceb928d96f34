"""A route: who may use it, and what serves it. The table is made in `app` from the parts that bring routes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Awaitable, Callable, Mapping

from sgl_epd.errors import NotFoundError, RequestError
from sgl_epd.net.exchange import Exchange

Handler = Callable[[Exchange], Awaitable[None]]


class Access(enum.Enum):
    """What a caller must show."""

    OPEN = "open"
    """Nothing: probes of load balancers carry no keys."""
    CLIENT = "client"
    ADMIN = "admin"


class MethodNotAllowedError(RequestError):
    status = 405
    error_type = "MethodNotAllowedError"


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """`path` ends with `/` when everything below it belongs to the route too."""

    path: str
    methods: Mapping[str, Handler]
    access: Access = Access.CLIENT

    @property
    def allow(self) -> str:
        return ", ".join(sorted(self.methods))


class RouteTable:
    """Exact paths first, then the longest prefix."""

    def __init__(self, routes: list[Route]) -> None:
        self._exact = {route.path: route for route in routes if not route.path.endswith("/")}
        prefixes = [route for route in routes if route.path.endswith("/")]
        self._prefixes = sorted(prefixes, key=lambda route: -len(route.path))
        if len(self._exact) + len({route.path for route in prefixes}) != len(routes):
            raise ValueError("two routes have the same path")

    def find(self, path: str) -> Route:
        """Raises `NotFoundError` (404)."""
        route = self._exact.get(path)
        if route is not None:
            return route
        for route in self._prefixes:
            if path.startswith(route.path) and len(path) > len(route.path):
                return route
        raise NotFoundError(f"there is no route {path[:200]}")

    def handler(self, route: Route, method: str) -> Handler:
        """Raises `MethodNotAllowedError` (405). HEAD is GET without the body."""
        handler = route.methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise MethodNotAllowedError(f"{route.path} allows {route.allow}, not {method}")
        return handler
