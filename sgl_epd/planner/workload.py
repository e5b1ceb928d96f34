"""Who asks for what and when: endless, lazy, the same for the same seed.

A workload is a few streams, each with its own arrivals and contents, merged by time: steady text beside images in
bursts is two of them. What a request contains does not depend on the rate, so that rates can be compared.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate, chain, islice, repeat
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from sgl_epd.errors import ConfigError
from sgl_epd.planner import datafile
from sgl_epd.planner import distributions as draw
from sgl_epd.planner.arrivals import Arrivals, Poisson
from sgl_epd.planner.distributions import Constant, Distribution
from sgl_epd.planner.models.spec import MediaRules, MediaSize
from sgl_epd.protocol.items import Modality

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Media(NamedTuple):
    """One item. Equal `content` means equal bytes."""

    modality: Modality
    width: int
    height: int
    frames: int
    """Of a video, after sampling; 1 otherwise."""
    seconds: float
    """Of audio."""
    content: int

    @property
    def megapixels(self) -> float:
        return self.width * self.height * self.frames / 1e6

    def size(self, rules: MediaRules) -> MediaSize:
        """For one model. Raises `BadRequestError` if it cannot take this."""
        if self.modality is Modality.AUDIO:
            return rules.audio(self.seconds)
        if self.modality is Modality.VIDEO:
            return rules.video(self.width, self.height, self.frames)
        return rules.image(self.width, self.height)


class Request(NamedTuple):
    """One request, `at` seconds after the start."""

    number: int
    at: float
    stream: str
    text_tokens: int
    prefix_tokens: int
    """Of the text: the same in all requests of this stream."""
    output_tokens: int
    media: tuple[Media, ...]


class Reuse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some items come from a pool of popular ones, the k-th of them with a weight of 1 / k^exponent."""

    share: Share
    pool: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    exponent: Annotated[float, msgspec.Meta(ge=0)] = 1.0


class MediaSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a stream's items come from. Sides are pixels."""

    modality: Modality = Modality.IMAGE
    width: Distribution = Constant(1024)
    aspect: Distribution = Constant(4 / 3)
    """Width over height."""
    frames: Distribution = Constant(1)
    seconds: Distribution = Constant(0)
    copies: bool = False
    """All items of a request are one and the same, as the EPD paper's client sends them."""
    reuse: Reuse | None = None

    def fresh(self, rng: random.Random, content: int) -> Media:
        if self.modality is Modality.AUDIO:
            return Media(self.modality, 0, 0, 1, max(0.1, self.seconds.draw(rng)), content)
        width = draw.count(self.width, rng, least=1)
        height = max(1, round(width / self.aspect.draw(rng)))
        frames = draw.count(self.frames, rng, least=1) if self.modality is Modality.VIDEO else 1
        return Media(self.modality, width, height, frames, 0.0, content)


class Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What requests contain."""

    text_tokens: Distribution
    output_tokens: Distribution
    prefix_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    items: Distribution = Constant(0)
    media: MediaSource = MediaSource()


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many requests of one content, or without end."""

    content: Content
    requests: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of traffic. `share` is its part of the requests, relative to those of the other streams."""

    name: str
    phases: Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1)]
    arrivals: Arrivals = Poisson()
    share: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    def __post_init__(self) -> None:
        if any(phase.requests is None for phase in self.phases[:-1]):
            raise ValueError(f"stream {self.name}: only the last phase may go on without end")


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source` says where its figures come from, and which of them are assumed."""

    name: str
    source: str
    streams: Annotated[tuple[Stream, ...], msgspec.Meta(min_length=1)]

    def requests(self, rate: float, seed: int = 0, limit: int | None = None) -> Iterator[Request]:
        """In order of time. `rate` is requests per second of all streams together. Endless without `limit`."""
        if not rate > 0:
            raise ConfigError(f"a rate of {rate} requests per second; it must be above 0")
        total = sum(stream.share for stream in self.streams)
        parts = [
            _drawn(stream, rate * stream.share / total, f"{seed}/{self.name}/{stream.name}") for stream in self.streams
        ]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=lambda request: request.at)
        numbered = (request._replace(number=number) for number, request in enumerate(merged))
        return islice(numbered, limit)


def _drawn(stream: Stream, rate: float, seed: str) -> Iterator[Request]:
    """One stream's requests. Times and contents have random numbers of their own."""
    rng = random.Random(f"{seed}/content")
    times = stream.arrivals.times(rate, random.Random(f"{seed}/time"))
    sources = {phase.content.media: _Items(phase.content.media, f"{seed}/pool", rng) for phase in stream.phases}
    phases = chain.from_iterable(
        repeat((phase.content, sources[phase.content.media]), *([] if phase.requests is None else [phase.requests]))
        for phase in stream.phases
    )
    for (content, items), at in zip(phases, times, strict=False):
        prefix = content.prefix_tokens
        text = prefix + draw.count(content.text_tokens, rng, least=1)
        output = draw.count(content.output_tokens, rng, least=1)
        media = items.take(draw.count(content.items, rng))
        yield Request(0, at, stream.name, text, prefix, output, media)


class _Items:
    """A stream's items; the pool is all that it remembers. Fresh contents are above 0, popular ones below."""

    def __init__(self, source: MediaSource, pool_seed: str, rng: random.Random) -> None:
        self._source, self._rng = source, rng
        self._base = random.Random(pool_seed).getrandbits(30) << 33
        self._next = 0
        self._pool: dict[int, Media] = {}
        self._pool_seed = pool_seed
        reuse = source.reuse
        weights = (rank**-reuse.exponent for rank in range(1, reuse.pool + 1)) if reuse else ()
        self._weights = list(accumulate(weights))

    def take(self, number: int) -> tuple[Media, ...]:
        if number and self._source.copies:
            return (self._one(),) * number
        return tuple(self._one() for _ in range(number))

    def _one(self) -> Media:
        reuse, rng = self._source.reuse, self._rng
        if reuse is not None and rng.random() < reuse.share:
            return self._popular(bisect(self._weights, rng.random() * self._weights[-1]))
        self._next += 1
        return self._source.fresh(rng, self._base + self._next)

    def _popular(self, rank: int) -> Media:
        media = self._pool.get(rank)
        if media is None:
            # Its size must not depend on when it is first asked for.
            own = random.Random(f"{self._pool_seed}/{rank}")
            media = self._pool[rank] = self._source.fresh(own, -(self._base + rank + 1))
        return media


def read_workload(file: Path) -> Workload:
    """A workload as JSON. Raises `ConfigError`."""
    return datafile.read(file, Workload)
