"""The generation routes: from a client's request to its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from sgl_epd.errors import BadRequestError
from sgl_epd.net.client import Buffer
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import encode_headers
from sgl_epd_router.admit import limit_rate, take_place
from sgl_epd_router.apis import GenerationApi
from sgl_epd_router.attempt import Attempt, StreamFailedError
from sgl_epd_router.body import BOOTSTRAP_FIELDS, is_true, string_list, without_fields
from sgl_epd_router.context import RouterContext
from sgl_epd_router.fanout import MAX_SAMPLES, FanOut
from sgl_epd_router.generation import Generation, RejectedError
from sgl_epd_router.limits import check_pixels
from sgl_epd_router.merge_logprobs import LogprobMerger
from sgl_epd_router.outgoing import IdRewriter, Outgoing, forwarded_headers, returned_headers
from sgl_epd_router.rooms import new_rid
from sgl_epd_router.scan import Scan
from sgl_epd_router.verdict import Verdict

ROUTING_KEY_HEADER = b"x-smg-routing-key"
"""As in SGLang's gateway: requests with the same value are kept together."""
_SAMPLE_QUEUE = 8
"""Pieces of a merged stream that may wait for a slow client."""


class Dispatcher:
    """One task serves one request (and `n` more, where `n` samples must be asked for one by one)."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    async def serve(self, exchange: Exchange, api: GenerationApi) -> None:
        """Answer `exchange`. Raises a `RequestError` when the request is refused or no worker can be asked."""
        context = self._context
        limit_rate(context, exchange)
        scan = self.scan(exchange, api)
        ticket = await take_place(context, exchange, bytes(scan.peek.priority))
        try:
            await self._serve(exchange, api, scan)
        finally:
            context.gate.leave(ticket)

    async def _serve(self, exchange: Exchange, api: GenerationApi, scan: Scan) -> None:
        context = self._context
        context.retrier.on_request()
        samples = api.samples(scan.peek) if context.staged else 1
        outgoing = self.outgoing(exchange, api, scan)
        if samples > 1:
            await self._serve_samples(exchange, api, scan, outgoing, samples)
            return
        generation = Generation(context, outgoing)
        with self._listed(outgoing.public_ids, [generation]):
            try:
                attempt = await generation.begin()
                self._observe_ttft(exchange, attempt)
                self.settled(outgoing, attempt)
                await answer(exchange, attempt, _changes(api, generation, attempt), api.error_event)
            except RejectedError as rejected:
                respond_verdict(exchange, rejected.verdict)
            finally:
                generation.close()

    def _observe_ttft(self, exchange: Exchange, attempt: Attempt) -> None:
        if attempt.streamed:
            context = self._context
            context.metrics.ttft.observe(context.clock() - exchange.received_at, exchange.path)

    def scan(self, exchange: Exchange, api: GenerationApi) -> Scan:
        """Read the body once; refuse what no worker shall be bothered with."""
        value = exchange.header(ROUTING_KEY_HEADER)
        scan = api.scanner.scan(exchange.body, value.decode("latin-1") if value else None)
        if scan is None:
            raise BadRequestError("the request body is not valid JSON, or not an object")
        limit = self._context.config.max_image_pixels
        for item in scan.media:
            if item.width and item.height:
                check_pixels(item.width, item.height, limit)
        return scan

    def outgoing(self, exchange: Exchange, api: GenerationApi, scan: Scan) -> Outgoing:
        found = scan.peek
        body: Buffer = exchange.body
        client_id: msgspec.Raw = getattr(found, api.id_field)
        if client_id or found.bootstrap_host or found.bootstrap_port or found.bootstrap_room:
            body = without_fields(body, (api.id_field, *BOOTSTRAP_FIELDS))
        return Outgoing(
            method=exchange.method,
            target=f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path,
            headers=encode_headers(forwarded_headers(exchange)),
            authorization=exchange.header(b"authorization"),
            body=body,
            key=scan.key,
            stream=is_true(found.stream),
            batch=scan.batch,
            id_field=api.id_field,
            id_prefix=api.id_prefix,
            public_ids=string_list(client_id),
            prompt_logprobs=api.wants_prompt_logprobs(found),
            names_worker=api.names_worker,
            prelude=api.prelude,
            end_marks=api.end_marks,
        )

    def settled(self, outgoing: Outgoing, attempt: Attempt) -> None:
        """An attempt works, and its answer is about to go to the client."""

    async def _serve_samples(
        self, exchange: Exchange, api: GenerationApi, scan: Scan, outgoing: Outgoing, samples: int
    ) -> None:
        if samples > MAX_SAMPLES:
            raise BadRequestError(f"n is {samples}, at most {MAX_SAMPLES} samples can be asked for", param="n")
        public_ids = outgoing.public_ids or (outgoing.id_prefix + new_rid(),)
        outgoing.body = api.single_body(outgoing.body, scan.peek)
        outgoing.public_ids = ()
        generations = [Generation(self._context, outgoing) for _ in range(samples)]
        fan_out = FanOut(generations, api.sample_merger(samples, public_ids[0]))
        with self._listed(public_ids, generations):
            try:
                attempts = await fan_out.begin()
                self._observe_ttft(exchange, attempts[0])
                await answer_samples(exchange, fan_out, attempts, api)
            except RejectedError as rejected:
                respond_verdict(exchange, rejected.verdict)
            finally:
                await fan_out.close()

    @contextlib.contextmanager
    def _listed(self, public_ids: Sequence[str], generations: Sequence[Generation]) -> Iterator[None]:
        """Makes the generations findable for `/abort_request` while they run."""
        requests = self._context.requests
        for public_id in public_ids:
            for generation in generations:
                requests.add(public_id, generation)
        try:
            yield
        finally:
            for public_id in public_ids:
                for generation in generations:
                    requests.discard(public_id, generation)


class Changes:
    """What is changed in an answer on its way to the client; usually nothing."""

    __slots__ = ("_ids", "_logprobs")

    def __init__(self, ids: IdRewriter | None, logprobs: LogprobMerger | None) -> None:
        self._ids = ids
        self._logprobs = logprobs

    def whole(self, body: bytes) -> bytes:
        if self._logprobs is not None:
            body = self._logprobs.whole(body)
        return self._ids(body) if self._ids is not None else body

    def events(self, events: bytes) -> bytes:
        if self._logprobs is not None:
            events = self._logprobs.events(events)
        return self._ids(events) if self._ids is not None else events


def _changes(api: GenerationApi, generation: Generation, attempt: Attempt) -> Changes:
    return Changes(generation.rewriter(), logprob_merger(api, attempt))


def logprob_merger(api: GenerationApi, attempt: Attempt) -> LogprobMerger | None:
    prefill = attempt.prefill
    if prefill is None or not attempt.outgoing.prompt_logprobs or not attempt.prefill_body:
        return None
    return LogprobMerger(attempt.prefill_body, prefill.is_events, api.merge_logprobs())


async def answer(
    exchange: Exchange, attempt: Attempt, changes: Changes, error_event: Callable[[Verdict], bytes]
) -> None:
    """Send the answer of a settled attempt. A stream that fails ends with an error event, and no `[DONE]`."""
    headers = returned_headers(attempt.headers)
    if not attempt.streamed:
        exchange.respond(attempt.status, changes.whole(attempt.body), headers)
        return
    exchange.start(attempt.status, headers)
    try:
        events = attempt.start_stream()
        while events:
            exchange.write(changes.events(events))
            if exchange.must_drain:
                await exchange.drain()
            events = await attempt.next_events()
    except StreamFailedError as failed:
        if not failed.reported:
            exchange.write(error_event(failed.verdict))
    exchange.end()


async def answer_samples(exchange: Exchange, fan_out: FanOut, attempts: Sequence[Attempt], api: GenerationApi) -> None:
    """The same for `n` samples, merged into one answer."""
    mergers = [logprob_merger(api, attempt) for attempt in attempts]
    headers = returned_headers(attempts[0].headers)
    if not attempts[0].streamed:
        bodies = [m.whole(a.body) if m else a.body for a, m in zip(attempts, mergers, strict=True)]
        exchange.respond(attempts[0].status, fan_out.merger.whole(bodies), headers)
        return
    exchange.start(attempts[0].status, headers)
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(_SAMPLE_QUEUE)
    reader = asyncio.create_task(fan_out.events(attempts, mergers, queue))
    try:
        while (events := await queue.get()) is not None:
            exchange.write(events)
            await exchange.drain()
        await reader
    finally:
        reader.cancel()
    exchange.end()


def respond_verdict(exchange: Exchange, verdict: Verdict) -> None:
    """The answer to a request that failed: the worker's own words, unchanged."""
    exchange.respond(verdict.status, verdict.body, returned_headers(verdict.headers))
