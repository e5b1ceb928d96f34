"""`POST /abort_request`: a client ends a request of its own by the id that it gave or that the answer carries."""

from __future__ import annotations

import msgspec

from sgl_epd.errors import BadRequestError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.replies import respond_json
from sgl_epd_router.commands import AbortRequests, PoolControl
from sgl_epd_router.routes import Access, Route


class _AbortRequest(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


class AbortApi:
    """Workers are asked for the ids that the router gave to the request there, so that only this request ends."""

    def __init__(self, control: PoolControl) -> None:
        self._control = control

    def routes(self) -> list[Route]:
        return [Route("/abort_request", {"POST": self.abort}, Access.ADMIN)]

    async def abort(self, exchange: Exchange) -> None:
        try:
            wanted = msgspec.json.decode(exchange.body, type=_AbortRequest)
        except msgspec.DecodeError as error:
            raise BadRequestError(f"an object with `rid` or `abort_all` is expected: {error}") from error
        if not wanted.rid and not wanted.abort_all:
            raise BadRequestError("`rid` is missing", param="rid")
        rid = None if wanted.abort_all else wanted.rid
        respond_json(exchange, await self._control.run(AbortRequests(rid)))
