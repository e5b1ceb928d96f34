"""The two gates on a request's way in: its client's rate, and a place among the running requests."""

from __future__ import annotations

from sgl_epd.net.exchange import Exchange
from sgl_epd_router.admission import Ticket
from sgl_epd_router.auth import presented_key
from sgl_epd_router.context import RouterContext
from sgl_epd_router.limits import parse_priority

PRIORITY_HEADER = b"x-override-priority"
"""As SGLang reads it; the body's `priority` field goes before it."""


def limit_rate(context: RouterContext, exchange: Exchange) -> None:
    """Raises `RateLimitError` (429). Clients are told apart by their key, or by their address where keys are not asked
    for: a key that nobody checks could be made up anew for each request."""
    if context.limiter is None:
        return
    key = presented_key(exchange.header(b"authorization"), exchange.header(b"x-api-key"))
    known = key if key and context.auth.has_client_keys else exchange.peer.encode()
    context.limiter.check(known, context.clock())


async def take_place(context: RouterContext, exchange: Exchange, priority: bytes = b"") -> Ticket:
    """Wait for a place; give it back with `context.gate.leave`. Raises 429, 408 or 503."""
    wanted = priority or exchange.header(PRIORITY_HEADER)
    ticket = await context.gate.enter(parse_priority(wanted))
    context.metrics.queue_wait.observe(context.clock() - exchange.received_at)
    return ticket
