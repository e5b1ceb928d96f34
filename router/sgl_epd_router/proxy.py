"""Routes that one worker answers by itself: embeddings, ranking, tokenization. Bodies pass untouched."""

from __future__ import annotations

from sgl_epd.errors import BadRequestError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import encode_headers
from sgl_epd_router.admit import limit_rate, take_place
from sgl_epd_router.context import RouterContext
from sgl_epd_router.generation import Generation, RejectedError
from sgl_epd_router.outgoing import Outgoing, forwarded_headers, returned_headers
from sgl_epd_router.routes import Handler, Route
from sgl_epd_router.scan import OTHER
from sgl_epd_router.worker import Role

_EMBEDDING_PATHS = ("/v1/embeddings", "/v1/rerank", "/v1/score", "/classify")
_TOKENIZER_PATHS = ("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize")


class Proxy:
    """Sends such a request to a worker of the first listed role that has any."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        # A prefill or decode worker runs no embedding model, but any LLM worker has the tokenizer.
        embed = self._handler(Role.REGULAR)
        tokenize = self._handler(Role.REGULAR, Role.PREFILL, Role.DECODE)
        return [
            *[Route(path, {"POST": embed}) for path in _EMBEDDING_PATHS],
            *[Route(path, {"POST": tokenize}) for path in _TOKENIZER_PATHS],
        ]

    def _handler(self, *roles: Role) -> Handler:
        async def handle(exchange: Exchange) -> None:
            registry = self._context.registry
            role = next((role for role in roles if registry.in_role(role)), roles[0])
            await self._serve(exchange, role)

        return handle

    async def _serve(self, exchange: Exchange, role: Role) -> None:
        limit_rate(self._context, exchange)
        ticket = await take_place(self._context, exchange)
        try:
            await self._forward(exchange, role)
        finally:
            self._context.gate.leave(ticket)

    async def _forward(self, exchange: Exchange, role: Role) -> None:
        scan = OTHER.scan(exchange.body, None)
        if scan is None:
            raise BadRequestError("the request body is not valid JSON, or not an object")
        outgoing = Outgoing(
            method=exchange.method,
            target=f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path,
            headers=encode_headers(forwarded_headers(exchange)),
            authorization=exchange.header(b"authorization"),
            body=exchange.body,
            key=scan.key,
            role=role,
            id_field=None,
            end_marks=(),
        )
        self._context.retrier.on_request()
        generation = Generation(self._context, outgoing)
        try:
            attempt = await generation.begin()
            exchange.respond(attempt.status, attempt.body, returned_headers(attempt.headers))
        except RejectedError as rejected:
            verdict = rejected.verdict
            exchange.respond(verdict.status, verdict.body, returned_headers(verdict.headers))
        finally:
            generation.close()
