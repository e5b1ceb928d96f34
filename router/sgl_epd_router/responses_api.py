"""`/v1/responses`: generation as elsewhere, and the routes by which a stored response is found again.

SGLang's workers keep responses in their own memory, so whatever refers to one must reach the worker that made it. The
id that the router gives to a response ends with a mark of that worker: any router process or replica can tell it, also
after a restart, without a table.
"""

from __future__ import annotations

from collections import OrderedDict

from sgl_epd.errors import NotFoundError, TransportError, UpstreamError
from sgl_epd.net.exchange import Exchange
from sgl_epd_router.apis import RESPONSES_API, GenerationApi
from sgl_epd_router.attempt import Attempt
from sgl_epd_router.body import raw_text
from sgl_epd_router.cancel import worker_headers
from sgl_epd_router.context import RouterContext
from sgl_epd_router.dispatch import Dispatcher, Job
from sgl_epd_router.outgoing import IdRewriter, Outgoing, returned_headers
from sgl_epd_router.rooms import RID_LENGTH, worker_mark
from sgl_epd_router.routes import Route
from sgl_epd_router.scan import Scan
from sgl_epd_router.worker import Role, Worker

_PREFIX = "/v1/responses/"
_ID_LENGTH = len(RESPONSES_API.id_prefix) + RID_LENGTH
_MARK_LENGTH = 8
_MAX_ALIASES = 10_000
_TIMEOUT_S = 60.0


class ResponsesApi(Dispatcher):
    """Serves these routes."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(context)
        self._aliases: OrderedDict[str, str] = OrderedDict()
        """Ids that clients chose (`request_id`) -> ours. In this process only."""

    def routes(self) -> list[Route]:
        forward = self.forward
        return [
            Route("/v1/responses", {"POST": self.create}),
            Route(_PREFIX, {"GET": forward, "POST": forward, "DELETE": forward}),
        ]

    async def create(self, exchange: Exchange) -> None:
        await self.serve(exchange, RESPONSES_API)

    async def forward(self, exchange: Exchange) -> None:
        """Retrieve, cancel, delete, list the input: the worker that made the response answers."""
        public_id, _, action = exchange.path.removeprefix(_PREFIX).partition("/")
        own_id = self._aliases.get(public_id, public_id)
        worker = self._worker_of(own_id)
        if worker is None:
            raise NotFoundError(f"Response with id '{public_id[:100]}' not found.", param="response_id")
        target = _PREFIX + own_id + (f"/{action}" if action else "") + (f"?{exchange.query}" if exchange.query else "")
        try:
            reply = await self._context.client.fetch(
                exchange.method,
                worker.url + target,
                headers=worker_headers(worker),
                body=bytes(exchange.body),
                timeout_s=_TIMEOUT_S,
            )
        except (TransportError, TimeoutError) as error:
            raise UpstreamError("the worker that holds the response does not answer") from error
        body = reply.body if own_id == public_id else IdRewriter([public_id], [own_id])(reply.body)
        exchange.respond(reply.status, body, returned_headers(reply.headers))

    def outgoing(self, exchange: Exchange, api: GenerationApi, scan: Scan) -> Outgoing:
        outgoing = super().outgoing(exchange, api, scan)
        if not self._context.staged:  # with prefill and decode workers SGLang keeps no responses, and says so
            outgoing.only = self._holder_of(raw_text(scan.peek.previous_response_id))
        return outgoing

    def settled(self, job: Job, attempt: Attempt) -> None:
        for public_id in job.outgoing.public_ids:
            self._aliases[public_id] = attempt.ids.rids[0]
            if len(self._aliases) > _MAX_ALIASES:
                self._aliases.popitem(last=False)

    def _holder_of(self, public_id: str | None) -> str | None:
        if public_id is None:
            return None
        worker = self._worker_of(self._aliases.get(public_id, public_id))
        if worker is None:
            raise NotFoundError(f"Response with id '{public_id[:100]}' not found.", param="previous_response_id")
        return worker.id

    def _worker_of(self, own_id: str) -> Worker | None:
        if len(own_id) != _ID_LENGTH:
            return None
        mark = own_id[-_MARK_LENGTH:]
        registry = self._context.registry
        workers = (*registry.in_role(Role.REGULAR), *registry.in_role(Role.DECODE))
        return next((worker for worker in workers if worker_mark(worker.id) == mark), None)
