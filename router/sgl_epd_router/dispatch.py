"""The generation routes: from a client's request to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import msgspec

from sgl_epd.errors import BadRequestError
from sgl_epd.net.call import Buffer
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
        job = self.prepare(exchange, api)
        ticket = await take_place(context, exchange, job.priority)
        context.retrier.on_request()
        try:
            with self._listed(job):
                await (self._serve_one if job.samples == 1 else self._serve_samples)(exchange, job)
        except RejectedError as rejected:
            # The worker's own words, unchanged.
            verdict = rejected.verdict
            exchange.respond(verdict.status, verdict.body, returned_headers(verdict.headers))
        finally:
            context.gate.leave(ticket)

    async def _serve_one(self, exchange: Exchange, job: Job) -> None:
        generation = job.generations[0]
        try:
            attempt = await generation.begin()
            job.outgoing.release()
            self._observe_ttft(exchange, attempt)
            self.settled(job, attempt)
            changes = Changes(generation.rewriter(), logprob_merger(job.api, attempt))
            await answer(exchange, attempt, changes, job.api.error_event)
        finally:
            generation.close()

    async def _serve_samples(self, exchange: Exchange, job: Job) -> None:
        fan_out = FanOut(job.generations, job.api.sample_merger(job.samples, job.names[0]))
        try:
            attempts = await fan_out.begin()
            job.outgoing.release()
            self._observe_ttft(exchange, attempts[0])
            await answer_samples(exchange, fan_out, attempts, job.api)
        finally:
            await fan_out.close()

    def _observe_ttft(self, exchange: Exchange, attempt: Attempt) -> None:
        if attempt.streamed:
            context = self._context
            context.metrics.ttft.observe(context.clock() - exchange.received_at, exchange.path)

    def prepare(self, exchange: Exchange, api: GenerationApi) -> Job:
        """Read the body once, and refuse what no worker shall be bothered with.

        Nothing of the body stays behind but in `Outgoing`, which lets go of it when the answer begins: images of
        megabytes must not be kept for as long as answers stream.
        """
        scan = self._scan(exchange, api)
        outgoing = self.outgoing(exchange, api, scan)
        exchange.body = b""
        own_ids = string_list(getattr(scan.peek, api.id_field))
        samples = api.samples(scan.peek) if self._context.staged else 1
        if samples > MAX_SAMPLES:
            raise BadRequestError(f"n is {samples}, at most {MAX_SAMPLES} samples can be asked for", param="n")
        if samples > 1:
            outgoing.body = api.single_body(outgoing.body, scan.peek)
            outgoing.public_ids = ()
        generations = [Generation(self._context, outgoing) for _ in range(samples)]
        names = own_ids or ((outgoing.id_prefix + new_rid(),) if samples > 1 else ())
        return Job(api, outgoing, generations, names, bytes(scan.peek.priority))

    def _scan(self, exchange: Exchange, api: GenerationApi) -> Scan:
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
        own_id: msgspec.Raw = getattr(found, api.id_field)
        if own_id or found.bootstrap_host or found.bootstrap_port or found.bootstrap_room:
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
            public_ids=public_ids(string_list(own_id), scan.batch),
            prompt_logprobs=api.wants_prompt_logprobs(found),
            names_worker=api.names_worker,
            prelude=api.prelude,
            end_marks=api.end_marks,
        )

    def settled(self, job: Job, attempt: Attempt) -> None:
        """An attempt works, and its answer is about to go to the client."""

    @contextlib.contextmanager
    def _listed(self, job: Job) -> Iterator[None]:
        """Makes the generations findable for `/abort_request` while they run, by the ids that the client knows."""
        requests = self._context.requests
        pairs = [(name, generation) for name in job.names for generation in job.generations]
        for name, generation in pairs:
            requests.add(name, generation)
        try:
            yield
        finally:
            for name, generation in pairs:
                requests.discard(name, generation)


@dataclasses.dataclass(slots=True)
class Job:
    """One client request, ready to run."""

    api: GenerationApi
    outgoing: Outgoing
    generations: list[Generation]
    names: tuple[str, ...]
    """Ids by which the client may abort it, besides those of the attempts: its own, or that of a merged answer."""
    priority: bytes

    @property
    def samples(self) -> int:
        return len(self.generations)


def public_ids(own_ids: tuple[str, ...], batch: int | None) -> tuple[str, ...]:
    """The ids that a client with ids of its own expects in the answers; of one id for a batch SGLang makes several."""
    if batch is not None and len(own_ids) == 1 and batch > 1:
        return tuple([f"{own_ids[0]}_{i}" for i in range(batch)])
    return own_ids


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
