"""The front door: every request passes here on its way to its route's handler.

Before the body is read: does the route exist, may the caller use it. After that: request id, metrics, errors.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from sgl_epd.errors import RequestError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import RawHeaders
from sgl_epd.net.replies import respond_error
from sgl_epd_router.context import RouterContext
from sgl_epd_router.logs import log_access
from sgl_epd_router.routes import Access, MethodNotAllowedError, Route, RouteTable
from sgl_epd_router.tracing import CURRENT_SPAN, TRACE_HEADERS, Tracer

REQUEST_ID_HEADER = b"x-request-id"
_MAX_ID_LENGTH = 256


class Api:
    """`check_head` and `handle` are what the HTTP server calls."""

    def __init__(self, context: RouterContext, routes: Sequence[Route]) -> None:
        self._context = context
        self._table = RouteTable(list(routes))
        self._id_headers = tuple([name.lower().encode("latin-1") for name in context.config.request_id_headers])
        self._origins = frozenset([origin.encode("latin-1") for origin in context.config.cors_allowed_origins])

    def check_head(self, exchange: Exchange) -> None:
        """Refuse unknown routes and callers before a body of megabytes is taken in. Raises `RequestError`."""
        self._name_request(exchange)
        if self._origins and self._cors(exchange) and exchange.method == "OPTIONS":
            return
        route = self._table.find(exchange.path)
        try:
            self._table.handler(route, exchange.method)
        except MethodNotAllowedError:
            exchange.reply_headers.append((b"allow", route.allow.encode()))
            raise
        self._authorize(exchange, route)

    async def handle(self, exchange: Exchange) -> None:
        if exchange.method == "OPTIONS":
            exchange.respond(204)
            return
        route = self._table.find(exchange.path)
        if self._context.tracer is None:
            await self._serve(exchange, route)
        else:
            await self._serve_traced(exchange, route, self._context.tracer)

    async def _serve(self, exchange: Exchange, route: Route) -> None:
        context = self._context
        try:
            await self._table.handler(route, exchange.method)(exchange)
        except RequestError as error:
            context.metrics.rejected.inc(str(error.code))
            respond_error(exchange, error)
        except asyncio.CancelledError:
            context.metrics.cancelled.inc(route.path)
            raise
        duration_s = context.clock() - exchange.received_at
        context.metrics.requests.inc(route.path, str(exchange.status))
        context.metrics.duration.observe(duration_s, route.path)
        if context.config.access_log:
            log_access(exchange, duration_s)

    async def _serve_traced(self, exchange: Exchange, route: Route, tracer: Tracer) -> None:
        span = tracer.request(route.path, exchange.headers)
        # The workers get the context of their legs' spans instead.
        exchange.headers = [header for header in exchange.headers if header[0] not in TRACE_HEADERS]
        token = CURRENT_SPAN.set(span)
        error = "the client went away"
        try:
            await self._serve(exchange, route)
            error = ""
        finally:
            CURRENT_SPAN.reset(token)
            span.end(exchange.status, error or None)

    def _authorize(self, exchange: Exchange, route: Route) -> None:
        if route.access is Access.OPEN:
            return
        auth = self._context.auth
        check = auth.check_admin if route.access is Access.ADMIN else auth.check_client
        check(exchange.header(b"authorization"), exchange.header(b"x-api-key"))

    def _name_request(self, exchange: Exchange) -> None:
        """The client's id for the request, or one of ours, goes to the workers and back to the client."""
        name, found = next(((n, v) for n in self._id_headers if (v := exchange.header(n))), (REQUEST_ID_HEADER, b""))
        if not found or len(found) > _MAX_ID_LENGTH:
            found = os.urandom(12).hex().encode()
        if exchange.header(REQUEST_ID_HEADER) is None:
            exchange.headers.append((REQUEST_ID_HEADER, found))
        exchange.reply_headers.append((REQUEST_ID_HEADER, found))
        if name != REQUEST_ID_HEADER:
            exchange.reply_headers.append((name, found))

    def _cors(self, exchange: Exchange) -> bool:
        """Allow a browser page of a listed origin; returns whether the origin is listed."""
        origin = exchange.header(b"origin")
        if origin is None or not (origin in self._origins or b"*" in self._origins):
            return False
        headers: RawHeaders = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if exchange.method == "OPTIONS":
            headers += [
                (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
                (b"access-control-allow-headers", exchange.header(b"access-control-request-headers") or b"*"),
                (b"access-control-max-age", b"600"),
            ]
        exchange.reply_headers += headers
        return True
