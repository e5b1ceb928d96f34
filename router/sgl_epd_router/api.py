"""The router's routes: which handler serves which path, and what unknown paths and methods get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sgl_epd.errors import NotFoundError, RequestError, UnavailableError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_error, respond_json
from sgl_epd_router.context import RouterContext
from sgl_epd_router.dispatch import Dispatcher, GenerationApi
from sgl_epd_router.outgoing import returned_headers
from sgl_epd_router.scan import CHAT, COMPLETION, GENERATE
from sgl_epd_router.worker import Role

Handler = Callable[[Exchange], Awaitable[None]]


class Api:
    """Finds the handler of a request."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._dispatcher = Dispatcher(context)
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._generation(GenerationApi(CHAT))},
            "/v1/completions": {"POST": self._generation(GenerationApi(COMPLETION))},
            "/generate": {"POST": self._generation(GenerationApi(GENERATE))},
            "/v1/models": {"GET": self._first_worker},
            "/model_info": {"GET": self._first_worker},
            "/get_model_info": {"GET": self._first_worker},
            "/server_info": {"GET": self._first_worker},
            "/get_server_info": {"GET": self._first_worker},
            "/flush_cache": {"POST": self._first_worker, "GET": self._first_worker},
            "/health": {"GET": self._health},
            "/liveness": {"GET": self._health},
        }

    async def handle(self, exchange: Exchange) -> None:
        methods = self._routes.get(exchange.path)
        if methods is None:
            raise NotFoundError(f"there is no route {exchange.path}")
        handler = methods.get(exchange.method)
        if handler is None:
            error = _MethodNotAllowedError(f"{exchange.path} does not allow {exchange.method}")
            respond_error(exchange, error, [(b"allow", ", ".join(methods).encode())])
            return
        await handler(exchange)

    def _generation(self, api: GenerationApi) -> Handler:
        async def handle(exchange: Exchange) -> None:
            await self._dispatcher.serve(exchange, api)

        return handle

    async def _first_worker(self, exchange: Exchange) -> None:
        registry = self._context.registry
        for role in (Role.REGULAR, Role.PREFILL, Role.DECODE):
            for worker in registry.in_role(role):
                if worker.healthy:
                    url = worker.url + exchange.path
                    headers = []
                    if worker.api_key:
                        headers.append((b"authorization", b"Bearer " + worker.api_key.encode()))
                    reply = await self._context.client.fetch(exchange.method, url, headers=headers)
                    exchange.respond(reply.status, reply.body, returned_headers(reply.headers))
                    return
        raise UnavailableError("no worker is available")

    async def _health(self, exchange: Exchange) -> None:
        respond_json(exchange, {"status": "ok"})


class _MethodNotAllowedError(RequestError):
    status = 405
    error_type = "MethodNotAllowedError"
