"""Routes that ask workers about themselves: models, server info, loads, and flushing their caches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from sgl_epd.errors import TransportError, UnavailableError, UpstreamError
from sgl_epd.net.client import Response
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_json
from sgl_epd_router.cancel import worker_headers
from sgl_epd_router.context import RouterContext
from sgl_epd_router.outgoing import returned_headers
from sgl_epd_router.routes import Access, Route
from sgl_epd_router.worker import Role, Worker

_LLM_ROLES = (Role.REGULAR, Role.PREFILL, Role.DECODE)
_TIMEOUT_S = 30.0
_FLUSH_TIMEOUT_S = 120.0
_SECRET_WORDS = ("api_key", "password", "secret")


class Info:
    """Serves these routes."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", {"GET": self.models}),
            Route("/v1/models/", {"GET": self.from_any_worker}),
            Route("/model_info", {"GET": self.model_info}),
            Route("/get_model_info", {"GET": self.model_info}),
            Route("/server_info", {"GET": self.server_info}),
            Route("/get_server_info", {"GET": self.server_info}),
            Route("/v1/loads", {"GET": self.loads}),
            Route("/get_loads", {"GET": self.router_loads}),
            Route("/flush_cache", {"GET": self.flush_cache, "POST": self.flush_cache}, Access.ADMIN),
        ]

    async def models(self, exchange: Exchange) -> None:
        """The models of all workers; each is asked once."""
        by_model: dict[str | None, Worker] = {}
        for worker in self._available(_LLM_ROLES):
            by_model.setdefault(worker.model_id, worker)
        if len(by_model) < 2:
            await self.from_any_worker(exchange)
            return
        replies = await self._ask_all(list(by_model.values()), "GET", "/v1/models")
        cards = {card["id"]: card for _, reply in replies for card in _object(reply).get("data", ())}
        respond_json(exchange, {"object": "list", "data": list(cards.values())})

    async def from_any_worker(self, exchange: Exchange) -> None:
        """The same request to the first worker that answers."""
        await self._forward(exchange, _target(exchange))

    async def model_info(self, exchange: Exchange) -> None:
        await self._forward(exchange, "/model_info")

    async def server_info(self, exchange: Exchange) -> None:
        """As SGLang's mini_lb: what benchmarks read (`internal_states`, `decode[0]`) is where they look for it."""
        staged = self._context.staged
        roles = (Role.PREFILL, Role.DECODE) if staged else (Role.REGULAR,)
        replies = await self._ask_all(self._require(roles), "GET", "/server_info")
        infos: dict[Role, list[Any]] = {role: [] for role in roles}
        for worker, reply in replies:
            if reply is not None and reply.status == 200:
                infos[worker.role].append(_without_secrets(_object(reply)))
        main = infos[Role.DECODE if staged else Role.REGULAR]
        if not main:
            raise UpstreamError("no worker told its server info")
        if not staged:
            respond_json(exchange, main[0] if len(main) == 1 else {**main[0], "workers": main})
            return
        states = [state for info in main for state in info.get("internal_states") or ()]
        answer = {"internal_states": states, "prefill": infos[Role.PREFILL], "decode": main}
        respond_json(
            exchange, {**answer, "encode": [worker.url for worker in self._context.registry.in_role(Role.ENCODE)]}
        )

    async def loads(self, exchange: Exchange) -> None:
        """SGLang's `/v1/loads` of all workers in one list, each entry with the worker that it came from."""
        replies = await self._ask_all(self._require(_LLM_ROLES), "GET", _target(exchange))
        loads = [
            {"worker": worker.url, "worker_type": worker.role.value, **entry}
            for worker, reply in replies
            for entry in _object(reply).get("loads", ())
        ]
        respond_json(exchange, {"loads": loads, "workers_silent": [w.url for w, r in replies if r is None]})

    async def router_loads(self, exchange: Exchange) -> None:
        """The router's own view, which its policies use. `load` as in SGLang's gateway: requests in flight."""
        now = self._context.clock()
        workers = []
        for worker in self._context.registry.workers.values():
            requests, work = worker.load.view(now)
            workers.append(
                {
                    "worker": worker.url,
                    "worker_type": worker.role.value,
                    "load": worker.load.own.requests,
                    "requests": requests,
                    "pending_work": work,
                }
            )
        respond_json(exchange, {"workers": workers})

    async def flush_cache(self, exchange: Exchange) -> None:
        """Flush all workers: 200 when all did, 206 when some did, 502 when none did."""
        target = _target(exchange)
        replies = await self._ask_all(self._require(_LLM_ROLES), "POST", target, timeout_s=_FLUSH_TIMEOUT_S)
        done = [worker.url for worker, reply in replies if reply is not None and reply.status == 200]
        failed = [
            {"worker": worker.url, "status": reply.status if reply else None}
            for worker, reply in replies
            if worker.url not in done
        ]
        status = 200 if not failed else 206 if done else 502
        respond_json(exchange, {"successful": done, "failed": failed}, status)

    async def _forward(self, exchange: Exchange, target: str) -> None:
        for worker in self._require(_LLM_ROLES):
            reply = await self._ask(worker, "GET", target, _TIMEOUT_S)
            if reply is not None and reply.status < 500:
                exchange.respond(reply.status, reply.body, returned_headers(reply.headers))
                return
        raise UpstreamError("no worker answered")

    def _available(self, roles: Sequence[Role]) -> list[Worker]:
        registry = self._context.registry
        workers = [worker for role in roles for worker in registry.in_role(role)]
        # Those that are thought dead come last: a worker that has just come up is unhealthy until its next check.
        return sorted(workers, key=lambda worker: not worker.healthy)

    def _require(self, roles: Sequence[Role]) -> list[Worker]:
        workers = self._available(roles)
        if not workers:
            raise UnavailableError(f"no {' or '.join(roles)} worker is registered", retry_after_s=5)
        return workers

    async def _ask_all(
        self, workers: Sequence[Worker], method: str, target: str, timeout_s: float = _TIMEOUT_S
    ) -> list[tuple[Worker, Response | None]]:
        replies = await asyncio.gather(*[self._ask(worker, method, target, timeout_s) for worker in workers])
        return list(zip(workers, replies, strict=True))

    async def _ask(self, worker: Worker, method: str, target: str, timeout_s: float) -> Response | None:
        try:
            return await self._context.client.fetch(
                method, worker.url + target, headers=worker_headers(worker), timeout_s=timeout_s
            )
        except (TransportError, TimeoutError):
            return None


def _target(exchange: Exchange) -> str:
    return f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path


def _object(reply: Response | None) -> dict[str, Any]:
    """The JSON object of a reply; empty for failures."""
    if reply is None or reply.status != 200:
        return {}
    try:
        found: dict[str, Any] = msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return found


def _without_secrets(info: dict[str, Any]) -> dict[str, Any]:
    """A worker's server info holds its flags, and among them its keys."""
    return {key: value for key, value in info.items() if not any(word in key for word in _SECRET_WORDS)}
