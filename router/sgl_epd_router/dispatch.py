"""One generation request from body to answer: choose workers, send, watch all legs, answer, clean up."""

from __future__ import annotations

import msgspec

from sgl_epd.errors import BadRequestError, DeadlineError, UpstreamError
from sgl_epd.net.client import Buffer
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import HOP_BY_HOP, RawHeaders, connection_options, encode_headers
from sgl_epd_router.body import ROUTER_FIELDS, Peek, is_true, raw_text, splice, without_fields
from sgl_epd_router.context import RouterContext
from sgl_epd_router.legs import Leg, Waker
from sgl_epd_router.rooms import new_rid, new_room
from sgl_epd_router.route_key import RouteKey
from sgl_epd_router.worker import Outcome, Role, Worker

_DROP_REQUEST = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding"}
_DROP_RESPONSE = HOP_BY_HOP | {b"content-length", b"date", b"server"}
_ABORT_TIMEOUT_S = 5.0


def forwarded_headers(exchange: Exchange) -> RawHeaders:
    options = connection_options(exchange.headers)
    return [(k, v) for k, v in exchange.headers if k not in _DROP_REQUEST and k not in options]


def returned_headers(headers: RawHeaders) -> RawHeaders:
    return [(k, v) for k, v in headers if k not in _DROP_RESPONSE]


class Dispatcher:
    """Serves the generation routes."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    async def serve(self, exchange: Exchange, peek: Peek, key: RouteKey) -> None:
        registry = self._context.registry
        pd = bool(registry.in_role(Role.PREFILL) or registry.in_role(Role.DECODE))
        body: Buffer = exchange.body
        if any(getattr(peek, name) for name in ROUTER_FIELDS):
            body = without_fields(body, ROUTER_FIELDS)
        waker = Waker(self._context.loop)
        legs: list[Leg] = []
        try:
            start = self._start_pd if pd else self._start_plain
            legs = start(exchange, body, key, waker)
            await self._answer(exchange, legs, waker, is_true(peek.stream))
        finally:
            for leg in legs:
                self._end(leg)

    def _start_plain(self, exchange: Exchange, body: Buffer, key: RouteKey, waker: Waker) -> list[Leg]:
        context = self._context
        rid = new_rid()
        leg = Leg(context.registry.select(Role.REGULAR, key, context.clock()), rid, waker, context.clock)
        self._send(leg, exchange, splice(body, b'"rid":"%b"' % rid.encode()))
        return [leg]

    def _start_pd(self, exchange: Exchange, body: Buffer, key: RouteKey, waker: Waker) -> list[Leg]:
        context = self._context
        rid = new_rid()
        prefill = Leg(context.registry.select(Role.PREFILL, key, context.clock()), rid, waker, context.clock)
        try:
            lease = context.registry.select(Role.DECODE, key, context.clock())
        except BaseException:
            prefill.finish(Outcome.CANCELLED)
            raise
        decode = Leg(lease, rid, waker, context.clock)
        worker: Worker = prefill.lease.worker
        host = msgspec.json.encode(worker.host)
        port = b"null" if worker.bootstrap_port is None else b"%d" % worker.bootstrap_port
        fields = b'"rid":"%b","bootstrap_host":%b,"bootstrap_port":%b,"bootstrap_room":%d' % (
            rid.encode(),
            host,
            port,
            new_room(),
        )
        parts = splice(body, fields)
        self._send(prefill, exchange, parts)
        self._send(decode, exchange, parts)
        return [prefill, decode]

    def _send(self, leg: Leg, exchange: Exchange, parts: list[Buffer]) -> None:
        worker = leg.lease.worker
        headers = forwarded_headers(exchange)
        if worker.api_key:
            headers = [(k, v) for k, v in headers if k != b"authorization"]
            headers.append((b"authorization", b"Bearer " + worker.api_key.encode()))
        client = self._context.client
        leg.call = client.send(
            client.origin(worker.url),
            "POST",
            exchange.path,
            leg,
            encoded_headers=encode_headers(headers),
            body=parts,
        )

    async def _answer(self, exchange: Exchange, legs: list[Leg], waker: Waker, stream: bool) -> None:
        main = legs[-1]
        data = b""
        deadline = self._context.config.request_timeout_secs
        loop = self._context.loop
        timer = loop.call_later(deadline, waker.wake)
        give_up_at = loop.time() + deadline
        try:
            while True:
                if self._failed(exchange, legs):
                    return
                if main.status and (main.ended or (stream and main.chunks)):
                    break
                if loop.time() >= give_up_at:
                    raise DeadlineError("the request passed its deadline")
                await waker.wait()
            if main.ended and not exchange.started:
                exchange.respond(main.status, main.take(), returned_headers(main.headers))
                return
            main.streaming = True
            exchange.start(main.status, returned_headers(main.headers))
            while True:
                data = main.take()
                if data:
                    exchange.write(data)
                    if exchange.must_drain:
                        await exchange.drain()
                if main.error is not None:
                    body = msgspec.json.encode(UpstreamError(str(main.error)).to_openai())
                    exchange.write(b"data: " + body + b"\n\n")
                    exchange.end()
                    return
                if main.ended and not main.chunks:
                    exchange.end()
                    return
                await waker.wait()
        finally:
            timer.cancel()

    def _failed(self, exchange: Exchange, legs: list[Leg]) -> bool:
        for leg in legs:
            if leg.error is not None:
                raise UpstreamError(f"the {leg.lease.role} worker failed: {leg.error}")
            if leg.status >= 400 and leg.ended:
                exchange.respond(leg.status, leg.take(), returned_headers(leg.headers))
                return True
        return False

    def _end(self, leg: Leg) -> None:
        if leg.error is not None or leg.status >= 500:
            outcome = Outcome.BACKPRESSURE if leg.status == 503 else Outcome.FAILURE
        elif leg.status == 429:
            outcome = Outcome.BACKPRESSURE
        elif leg.status >= 400:
            outcome = Outcome.CLIENT_ERROR
        elif leg.ended:
            outcome = Outcome.OK
        else:
            outcome = Outcome.CANCELLED
            self._abort(leg)
        leg.finish(outcome)

    def _abort(self, leg: Leg) -> None:
        body = b'{"rid":"%b"}' % leg.rid.encode()
        self._context.client.spawn(self._post_abort(leg.lease.worker, body))

    async def _post_abort(self, worker: Worker, body: bytes) -> None:
        from sgl_epd.errors import TransportError

        headers = [(b"content-type", b"application/json")]
        if worker.api_key:
            headers.append((b"authorization", b"Bearer " + worker.api_key.encode()))
        try:
            await self._context.client.fetch(
                "POST", worker.url + "/abort_request", headers=headers, body=body, timeout_s=_ABORT_TIMEOUT_S
            )
        except (TransportError, TimeoutError):
            return


def model_of(peek: Peek) -> str | None:
    return raw_text(peek.model)


def require_object(peek: Peek | None) -> Peek:
    if peek is None:
        raise BadRequestError("the request body is not a JSON object")
    return peek
