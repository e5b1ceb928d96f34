"""The control routes: workers, the gateway's legacy routes, encoder registration, draining."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, unquote

import msgspec

from sgl_epd.errors import BadRequestError, NotFoundError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_json, respond_text
from sgl_epd_router.commands import (
    AddWorker,
    DrainRouter,
    DrainWorker,
    Heartbeat,
    PoolControl,
    RemoveWorker,
    UpdateWorker,
)
from sgl_epd_router.gate import Gate
from sgl_epd_router.registry import Registry
from sgl_epd_router.routes import Access, MethodNotAllowedError, Route
from sgl_epd_router.routes import Handler as RouteHandler
from sgl_epd_router.ssrf import WorkerGuard
from sgl_epd_router.worker import Role, Source, Worker, WorkerSpec, normalize_url
from sgl_epd_router.worker_json import changes_from_body, public_worker, public_workers, spec_from_body

_DRAIN_POLL_S = 0.05
_MAX_WAIT_S = 3600.0


class AdminRequest(Protocol):
    """What is read of a request; `sgl_epd.net.exchange.Exchange` is one."""

    method: str
    path: str
    query: str
    body: bytes | bytearray


@dataclasses.dataclass(frozen=True, slots=True)
class AdminReply:
    """`body` is JSON-encodable, or text when it is a string."""

    body: Any
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[AdminRequest], Awaitable[AdminReply]]


@dataclasses.dataclass(frozen=True, slots=True)
class AdminDefaults:
    """What a worker gets that its registration does not name."""

    worker_key: str | None
    encoder_port: int


class Admin:
    def __init__(
        self,
        registry: Registry,
        control: PoolControl,
        gate: Gate,
        guard: WorkerGuard,
        defaults: AdminDefaults,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._control = control
        self._gate = gate
        self._guard = guard
        self._defaults = defaults
        self._clock = clock
        self._routes: dict[str, dict[str, Handler]] = {
            "/workers": {"GET": self._list, "POST": self._add},
            "/list_workers": {"GET": self._legacy_list},
            "/add_worker": {"POST": self._legacy_add},
            "/remove_worker": {"POST": self._legacy_remove},
            "/register_encoder_url": {"POST": self._register_encoder},
            "/unregister_encoder_url": {"DELETE": self._unregister_encoder},
            "/list_encoder_urls": {"GET": self._list_encoders},
            "/drain": {"GET": self._drain_state, "POST": self._drain, "DELETE": self._undrain},
        }
        self._worker_routes: dict[str, dict[str, Handler]] = {
            "": {"GET": self._get, "PUT": self._update, "PATCH": self._update, "DELETE": self._remove},
            "drain": {"POST": self._drain_worker, "DELETE": self._undrain_worker},
            "heartbeat": {"PUT": self._heartbeat, "POST": self._heartbeat},
        }

    def routes(self) -> list[Route]:
        found = [Route(path, _served(methods), Access.ADMIN) for path, methods in self._routes.items()]
        below = dict.fromkeys(("GET", "PUT", "PATCH", "POST", "DELETE"), self._serve_one)
        return [*found, Route("/workers/", _served(below), Access.ADMIN)]

    async def _serve_one(self, request: AdminRequest) -> AdminReply:
        """`/workers/NAME` and what lies below it."""
        methods = self._worker_routes[_split_worker_path(request.path)[1]]
        handler = methods.get(request.method)
        if handler is None:
            raise MethodNotAllowedError(f"{request.path} allows {', '.join(methods)}, not {request.method}")
        return await handler(request)

    # -- workers -------------------------------------------------------------------------------------------------

    async def _list(self, request: AdminRequest) -> AdminReply:
        return AdminReply(public_workers(self._registry.workers.values(), self._clock()))

    async def _add(self, request: AdminRequest) -> AdminReply:
        return await self._accept(spec_from_body(request.body, self._defaults.worker_key, self._defaults.encoder_port))

    async def _accept(self, spec: WorkerSpec) -> AdminReply:
        await self._guard.check_url(spec.url)
        worker = await self._control.run(AddWorker(spec))
        location = f"/workers/{quote(worker['id'])}"
        body = {
            "status": "accepted",
            "worker_id": worker["id"],
            "url": worker["url"],
            "location": location,
            "message": "the worker takes requests as soon as it passes its health check",
        }
        return AdminReply(body, 202, ((b"location", location.encode()),))

    async def _get(self, request: AdminRequest) -> AdminReply:
        return AdminReply(public_worker(self._find(request), self._clock()))

    async def _update(self, request: AdminRequest) -> AdminReply:
        worker = self._find(request)
        changed = await self._control.run(UpdateWorker(worker.id, changes_from_body(request.body)))
        return AdminReply({"status": "accepted", "worker_id": worker.id, "worker": changed}, 202)

    async def _remove(self, request: AdminRequest) -> AdminReply:
        worker = self._find(request)
        await self._control.run(RemoveWorker(worker.id))
        body = {"status": "accepted", "worker_id": worker.id, "message": "removed once its running requests have ended"}
        return AdminReply(body, 202)

    async def _drain_worker(self, request: AdminRequest) -> AdminReply:
        """`?timeout_secs=N` waits until nothing of ours runs there, or answers 200 with what still does."""
        worker = self._find(request)
        await self._control.run(DrainWorker(worker.id, True))
        await self._wait(lambda: worker.load.own.requests == 0, request)
        return AdminReply(public_worker(worker, self._clock()))

    async def _undrain_worker(self, request: AdminRequest) -> AdminReply:
        return AdminReply(await self._control.run(DrainWorker(self._find(request).id, False)))

    async def _heartbeat(self, request: AdminRequest) -> AdminReply:
        worker = self._find(request)
        await self._control.run(Heartbeat(worker.id))
        return AdminReply({"status": "ok", "worker_id": worker.id, "state": worker.state})

    def _find(self, request: AdminRequest) -> Worker:
        """By id, or by URL (percent-encoded or not) as vllm-router has it."""
        name = _split_worker_path(request.path)[0]
        return self._registry.workers.get(name) or self._by_url(name)

    def _by_url(self, url: str) -> Worker:
        try:
            wanted = normalize_url(url)
        except BadRequestError:
            wanted = url
        for worker in self._registry.workers.values():
            if worker.url == wanted:
                return worker
        raise NotFoundError(f"there is no worker {url!r}", code="WORKER_NOT_FOUND")

    # -- the legacy routes ---------------------------------------------------------------------------------------

    async def _legacy_list(self, request: AdminRequest) -> AdminReply:
        return AdminReply({"urls": [worker.url for worker in self._registry.workers.values()]})

    async def _legacy_add(self, request: AdminRequest) -> AdminReply:
        fields = _query(request)
        fields.setdefault("url", "")
        ports = {name: int(fields[name]) for name in ("bootstrap_port",) if fields.get(name, "").isdigit()}
        body = msgspec.json.encode(fields | ports)
        spec = spec_from_body(body, self._defaults.worker_key, self._defaults.encoder_port)
        await self._accept(spec)
        return AdminReply(f"Successfully added worker: {spec.url}")

    async def _legacy_remove(self, request: AdminRequest) -> AdminReply:
        worker = self._by_url(_query(request).get("url", ""))
        await self._control.run(RemoveWorker(worker.id))
        return AdminReply(f"Successfully removed worker: {worker.url}")

    # -- encoders, as SGLang's EncoderBootstrapServer has them -----------------------------------------------------

    async def _register_encoder(self, request: AdminRequest) -> AdminReply:
        url = _url_field(request)
        if url is None:
            return AdminReply({"error": "Missing or empty 'url' field"}, 400)
        defaults = self._defaults
        await self._accept(WorkerSpec(url, Role.ENCODE, api_key=defaults.worker_key, source=Source.REGISTERED))
        return AdminReply("OK")

    async def _unregister_encoder(self, request: AdminRequest) -> AdminReply:
        url = _url_field(request)
        if url is None:
            return AdminReply({"error": "Missing or empty 'url' field"}, 400)
        worker = self._registry.workers.get(WorkerSpec(url, Role.ENCODE).id)
        if worker is not None:
            await self._control.run(RemoveWorker(worker.id))
        return AdminReply("OK")

    async def _list_encoders(self, request: AdminRequest) -> AdminReply:
        return AdminReply({"encoder_urls": [worker.url for worker in self._registry.in_role(Role.ENCODE)]})

    # -- the router itself ---------------------------------------------------------------------------------------

    async def _drain(self, request: AdminRequest) -> AdminReply:
        """New requests get 503 and `/readiness` fails; running ones go on. `?timeout_secs=N` waits for them."""
        await self._control.run(DrainRouter(True))
        await self._wait(lambda: self._gate.queue.running == 0, request)
        return await self._drain_state(request)

    async def _undrain(self, request: AdminRequest) -> AdminReply:
        await self._control.run(DrainRouter(False))
        return await self._drain_state(request)

    async def _drain_state(self, request: AdminRequest) -> AdminReply:
        queue = self._gate.queue
        state = {"draining": self._control.draining, "running": queue.running, "waiting": queue.waiting}
        return AdminReply(state)

    async def _wait(self, done: Callable[[], bool], request: AdminRequest) -> None:
        text = _query(request).get("timeout_secs", "0")
        try:
            left_s = min(float(text), _MAX_WAIT_S)
        except ValueError:
            raise BadRequestError(f"timeout_secs must be a number, not {text!r}", param="timeout_secs") from None
        give_up_at = self._clock() + left_s
        while not done() and self._clock() < give_up_at:
            await asyncio.sleep(_DRAIN_POLL_S)


def _served(methods: Mapping[str, Handler]) -> dict[str, RouteHandler]:
    """The handlers as the server calls them."""
    return {method: functools.partial(_respond, handler) for method, handler in methods.items()}


async def _respond(handler: Handler, exchange: Exchange) -> None:
    reply = await handler(exchange)
    if isinstance(reply.body, str):
        respond_text(exchange, reply.body, reply.status)
    else:
        respond_json(exchange, reply.body, reply.status, list(reply.headers))


def _split_worker_path(path: str) -> tuple[str, str]:
    """`/workers/NAME[/drain|/heartbeat]` to (name, verb); the name may be a URL with slashes of its own."""
    name = path.removeprefix("/workers/")
    head, _, verb = name.rpartition("/")
    if head and verb in ("drain", "heartbeat"):
        return unquote(head), verb
    return unquote(name), ""


def _query(request: AdminRequest) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(request.query).items()}


def _url_field(request: AdminRequest) -> str | None:
    try:
        body = msgspec.json.decode(request.body)
    except msgspec.DecodeError:
        return None
    url = body.get("url") if isinstance(body, dict) else None
    return normalize_url(url) if isinstance(url, str) and url else None
