"""`n` samples through prefill and decode workers: one generation for each.

A stock SGLang server gives all samples of a request the same bootstrap room (0.5.23,
`managers/tokenizer_manager.py:_handle_batch_request` copies the tokenized request), which a KV transfer cannot share:
they would wait for each other for ever. So the router asks for them one by one, each with a room and an id of its own.
The first goes ahead until its prompt is prefilled; the others then find the prefix in the prefill worker's cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from sgl_epd_router.attempt import Attempt, StreamFailedError
from sgl_epd_router.body import ROUTER_FIELDS, Buffer, splice, without_fields
from sgl_epd_router.generation import Generation
from sgl_epd_router.merge_logprobs import LogprobMerger
from sgl_epd_router.merge_samples import SampleMerger
from sgl_epd_router.stream import error_event

MAX_SAMPLES = 128


class FanOut:
    """Runs the generations of one request side by side. `close` must be called in the end."""

    def __init__(self, generations: Sequence[Generation], merger: SampleMerger) -> None:
        self.generations = generations
        self.merger = merger
        self._tasks: list[asyncio.Task[object]] = []
        self._prefilled = asyncio.Event()

    async def begin(self) -> list[Attempt]:
        """All attempts, settled. Raises the first failure; then no sample goes on."""
        first = self.generations[0]
        first.on_prefilled = self._prefilled.set
        coroutines = [self._begin_first(first), *map(self._begin_other, self.generations[1:])]
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        self._tasks += tasks
        return list(await asyncio.gather(*tasks))

    async def _begin_first(self, generation: Generation) -> Attempt:
        try:
            return await generation.begin()
        finally:
            self._prefilled.set()

    async def _begin_other(self, generation: Generation) -> Attempt:
        await self._prefilled.wait()
        return await generation.begin()

    async def events(
        self, attempts: Sequence[Attempt], mergers: Sequence[LogprobMerger | None], queue: asyncio.Queue[bytes | None]
    ) -> None:
        """Put the merged events of all samples into `queue`, and None at the end.

        When one sample breaks, the stream ends with an error event and without `[DONE]`.
        """
        reads = [self._read(i, *pair, queue) for i, pair in enumerate(zip(attempts, mergers, strict=True))]
        tasks = [asyncio.create_task(read) for read in reads]
        self._tasks += tasks
        try:
            await asyncio.gather(*tasks)
            await queue.put(self.merger.end())
        except StreamFailedError as failed:
            for task in tasks:
                task.cancel()
            if not failed.reported:
                await queue.put(error_event(failed.verdict))
        except Exception:
            await queue.put(None)
            raise
        await queue.put(None)

    async def _read(
        self, sample: int, attempt: Attempt, merger: LogprobMerger | None, queue: asyncio.Queue[bytes | None]
    ) -> None:
        events = attempt.start_stream()
        while events:
            merged = self._rewrite(sample, merger.events(events) if merger else events)
            if merged:
                await queue.put(merged)
            events = await attempt.next_events()

    def _rewrite(self, sample: int, events: bytes) -> bytes:
        out: list[bytes] = []
        for event in events.split(b"\n\n"):
            lines = event.split(b"\n")
            at = next((i for i, line in enumerate(lines) if line.startswith(b"data: {")), None)
            if at is None:
                continue  # [DONE]: the merger says when all are done
            data = self.merger.event(sample, lines[at][6:])
            if data:
                lines[at] = b"data: " + data
                out.append(b"\n".join(lines) + b"\n\n")
        return b"".join(out)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for generation in self.generations:
            generation.close()


def single_sample_body(body: Buffer) -> bytes:
    """The body of a completion request for one sample."""
    return without_fields(body, (*ROUTER_FIELDS, "n"))


def single_sample_generate_body(body: Buffer, sampling_params: msgspec.Raw) -> bytes:
    """The body of a `/generate` request for one sample; there, `n` is a sampling parameter."""
    if bytes(memoryview(sampling_params)[:1]) == b"[":
        each = msgspec.json.decode(sampling_params, type=list[msgspec.Raw])
        params = b"[" + b",".join([without_fields(memoryview(raw), ("n",)) for raw in each]) + b"]"
    else:
        params = without_fields(memoryview(sampling_params), ("n",))
    rest = without_fields(body, (*ROUTER_FIELDS, "sampling_params"))
    return b"".join(map(bytes, splice(rest, b'"sampling_params":' + params)))
