"""Traffic that was recorded: replayed at its own times, or faster, one line after the other.

Read are our own JSON lines (what `write_trace` writes), Mooncake's (`timestamp` in ms, `input_length`, `output_length`)
and the CSV of Azure's multimodal trace (`TIMESTAMP`, `NumImages`, `ContextTokens`, `GeneratedTokens`). The last two
know no image sizes: the caller says which.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sgl_epd.errors import ConfigError
from sgl_epd.planner.workload import Media, Request
from sgl_epd.protocol.items import Modality

Amount = Annotated[int, msgspec.Meta(ge=0)]
_AZURE = ("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens")


class TraceItem(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One item of a request in our own format."""

    modality: Modality = Modality.IMAGE
    width: Amount = 0
    height: Amount = 0
    frames: Annotated[int, msgspec.Meta(ge=1)] = 1
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    content: int = 0


class TraceLine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request in our own format. `at` is in seconds."""

    at: float
    text_tokens: Amount
    output_tokens: Annotated[int, msgspec.Meta(ge=1)]
    media: tuple[TraceItem, ...] = ()
    prefix_tokens: Amount = 0
    stream: str = "trace"


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: Amount
    output_length: Amount


def read_trace(
    file: Path, *, speed: float = 1.0, limit: int | None = None, image: tuple[int, int] = (1024, 768)
) -> Iterator[Request]:
    """Requests from time 0 on; `speed` 2 halves all gaps. Held in memory is one line.

    Raises `ConfigError` with the line's number, also where times go back.
    """
    if speed <= 0:
        raise ConfigError(f"a speed of {speed}; it must be above 0")
    lines = itertools.islice(_lines(file, image), limit)
    start = last = None
    for number, line in enumerate(lines):
        start = line.at if start is None else start
        if last is not None and line.at < last:
            raise ConfigError(f"{file}: request {number + 1} is earlier than the one before it; sort the trace by time")
        last = line.at
        media = tuple(Media(i.modality, i.width, i.height, i.frames, i.seconds, i.content) for i in line.media)
        at = (line.at - start) / speed
        yield Request(number, at, line.stream, line.text_tokens, line.prefix_tokens, line.output_tokens, media)


def mean_rate(file: Path) -> float:
    """Requests per second over the whole trace, which is read once. Raises `ConfigError` if it has no length."""
    count, at = 0, 0.0
    for request in read_trace(file):
        count, at = count + 1, request.at
    if at <= 0:
        raise ConfigError(f"{file} has {count} requests at one point in time: no rate")
    return (count - 1) / at


def write_trace(file: Path, requests: Iterable[Request]) -> int:
    """How many were written. Numbers are not kept."""
    count = 0
    with file.open("wb") as out:
        for request in requests:
            items = tuple(TraceItem(*media) for media in request.media)
            line = TraceLine(
                request.at, request.text_tokens, request.output_tokens, items, request.prefix_tokens, request.stream
            )
            out.write(msgspec.json.encode(line) + b"\n")
            count += 1
    return count


def _lines(file: Path, image: tuple[int, int]) -> Iterator[TraceLine]:
    try:
        with file.open("rb") as opened:
            head = opened.readline()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    if head.startswith(b"{"):
        return _json_lines(file, _MooncakeLine if b'"input_length"' in head else TraceLine)
    if all(name.encode() in head for name in _AZURE):
        return _azure_lines(file, image)
    raise ConfigError(f"{file} is no trace: neither JSON lines nor a CSV with {', '.join(_AZURE)}")


def _json_lines(file: Path, kind: type[TraceLine] | type[_MooncakeLine]) -> Iterator[TraceLine]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            try:
                read: Any = msgspec.json.decode(line, type=kind)
            except msgspec.MsgspecError as error:
                raise ConfigError(f"{file}, line {number}: {error}") from error
            if isinstance(read, _MooncakeLine):
                read = TraceLine(read.timestamp / 1000, max(1, read.input_length), max(1, read.output_length))
            yield read


def _azure_lines(file: Path, image: tuple[int, int]) -> Iterator[TraceLine]:
    """`ContextTokens` hold text and images; the text is at least one token."""
    contents = itertools.count(1)
    with file.open(newline="") as opened:
        for number, row in enumerate(csv.DictReader(opened), 2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
                images, context, output = (int(row[name]) for name in _AZURE[1:])
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{file}, line {number}: {error}") from error
            media = tuple(TraceItem(width=image[0], height=image[1], content=next(contents)) for _ in range(images))
            yield TraceLine(at, max(1, context), max(1, output), media)
