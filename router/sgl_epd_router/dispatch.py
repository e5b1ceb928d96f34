"""The generation routes: from a client's request to its answer."""

from __future__ import annotations

import dataclasses

from sgl_epd.errors import BadRequestError
from sgl_epd.net.client import Buffer
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import encode_headers
from sgl_epd_router.attempt import Attempt, StreamFailedError
from sgl_epd_router.body import ROUTER_FIELDS, is_true, string_list, without_fields
from sgl_epd_router.context import RouterContext
from sgl_epd_router.generation import Generation, RejectedError
from sgl_epd_router.limits import check_pixels
from sgl_epd_router.outgoing import IdRewriter, Outgoing, forwarded_headers, returned_headers
from sgl_epd_router.scan import Scan, Scanner
from sgl_epd_router.stream import error_event
from sgl_epd_router.verdict import Verdict

ROUTING_KEY_HEADER = b"x-smg-routing-key"
"""As in SGLang's gateway: requests with the same value are kept together."""


@dataclasses.dataclass(frozen=True)
class GenerationApi:
    """How one generation route differs from the others."""

    scanner: Scanner
    id_field: str = "rid"
    id_prefix: str = ""
    ends_with_done: bool = True


class Dispatcher:
    """Serves the generation routes: one task a request."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    async def serve(self, exchange: Exchange, api: GenerationApi) -> None:
        scan = api.scanner.scan(exchange.body, _routing_key(exchange))
        if scan is None:
            raise BadRequestError("the request body is not valid JSON, or not an object")
        limit = self._context.config.max_image_pixels
        for item in scan.media:
            if item.width and item.height:
                check_pixels(item.width, item.height, limit)
        self._context.retrier.on_request()
        outgoing = self.outgoing(exchange, api, scan)
        generation = Generation(self._context, outgoing)
        for public_id in outgoing.public_ids:
            self._context.requests.add(public_id, generation)
        try:
            await self._answer(exchange, generation)
        finally:
            generation.close()
            for public_id in outgoing.public_ids:
                self._context.requests.discard(public_id, generation)

    def outgoing(self, exchange: Exchange, api: GenerationApi, scan: Scan) -> Outgoing:
        found = scan.peek
        body: Buffer = exchange.body
        if found.bootstrap_host or found.bootstrap_port or found.bootstrap_room or found.rid:
            body = without_fields(body, ROUTER_FIELDS)
        return Outgoing(
            method=exchange.method,
            target=exchange.target,
            headers=encode_headers(forwarded_headers(exchange)),
            authorization=exchange.header(b"authorization"),
            body=body,
            key=scan.key,
            stream=is_true(found.stream),
            batch=scan.batch,
            id_field=api.id_field,
            id_prefix=api.id_prefix,
            public_ids=string_list(found.rid),
            ends_with_done=api.ends_with_done,
        )

    async def _answer(self, exchange: Exchange, generation: Generation) -> None:
        try:
            attempt = await generation.begin()
        except RejectedError as rejected:
            respond_verdict(exchange, rejected.verdict)
            return
        rewrite = generation.rewriter()
        if attempt.streamed:
            await relay(exchange, attempt, rewrite)
            return
        body = rewrite(attempt.body) if rewrite else attempt.body
        exchange.respond(attempt.status, body, returned_headers(attempt.headers))


async def relay(exchange: Exchange, attempt: Attempt, rewrite: IdRewriter | None) -> None:
    """Pass a stream on, event by event. A failure becomes an error event, and no `[DONE]` follows it."""
    exchange.start(attempt.status, returned_headers(attempt.headers))
    try:
        events = attempt.start_stream()
        while events:
            exchange.write(rewrite(events) if rewrite else events)
            if exchange.must_drain:
                await exchange.drain()
            events = await attempt.next_events()
    except StreamFailedError as failed:
        if not failed.reported:
            exchange.write(error_event(failed.verdict))
    exchange.end()


def respond_verdict(exchange: Exchange, verdict: Verdict) -> None:
    """The answer to a request that failed: the worker's own words, unchanged."""
    exchange.respond(verdict.status, verdict.body, returned_headers(verdict.headers))


def _routing_key(exchange: Exchange) -> str | None:
    value = exchange.header(ROUTING_KEY_HEADER)
    return value.decode("latin-1") if value else None
