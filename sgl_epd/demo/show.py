"""Asks the running host questions about pictures, and prints questions, answers and a timeline."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sgl_epd.demo import timeline
from sgl_epd.demo.samples import Sample, sample
from sgl_epd.errors import EpdError, TransportError
from sgl_epd.net.client import HttpClient

ANSWER_TIMEOUT_S = 120.0
_MAX_TOKENS = 96
_TIMELINE_TRIES = 5
_SETTLE_S = 0.3

CASES: tuple[tuple[str, int, bool], ...] = (
    ("number", 1, False),
    ("shapes", 2, False),
    ("shapes.count", 3, False),
    ("shapes.place", 5, True),
    ("two_images", 5, False),
    ("three_images", 7, False),
    ("three_images.which", 7, True),
    ("text", 8, False),
)
"""What is asked: kind of sample, seed, streamed or not."""


class AskError(EpdError):
    """The host did not answer a question."""


@dataclasses.dataclass(frozen=True)
class Reply:
    text: str
    chunks: int
    seconds: float


class Asker:
    """An OpenAI chat client, just large enough for the demo. Make it inside a running event loop."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._client = HttpClient()

    async def ask(self, messages: list[dict[str, Any]], stream: bool) -> Reply:
        """Raises `AskError` for anything but an answer."""
        body = {
            "model": self._model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": _MAX_TOKENS,
            "stream": stream,
        }
        begun_at = time.monotonic()
        try:
            reply = await self._client.fetch(
                "POST",
                self._url + "/v1/chat/completions",
                headers=[(b"content-type", b"application/json")],
                body=msgspec.json.encode(body),
                timeout_s=ANSWER_TIMEOUT_S,
            )
        except TimeoutError as error:
            raise AskError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
        except TransportError as error:
            raise AskError(str(error)) from error
        seconds = time.monotonic() - begun_at
        if reply.status != 200:
            raise AskError(f"HTTP {reply.status}: {reply.body[:300].decode(errors='replace')}")
        text, chunks = _from_events(reply.body) if stream else (_from_json(reply.body), 1)
        return Reply(text.strip(), chunks, seconds)

    async def page(self, url: str) -> str:
        """A worker's `/metrics`."""
        reply = await self._client.fetch("GET", url + "/metrics", timeout_s=10.0)
        return reply.body.decode()

    async def close(self) -> None:
        await self._client.close()


def _from_json(body: bytes) -> str:
    try:
        return str(json.loads(body)["choices"][0]["message"]["content"] or "")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise AskError(f"not a chat completion: {body[:300].decode(errors='replace')}") from error


def _from_events(body: bytes) -> tuple[str, int]:
    """The text of a whole event stream and the number of events that carried some of it."""
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise AskError("the stream broke off before [DONE]")
    pieces = []
    for event in events[:-1]:
        chunk = json.loads(event)
        if "error" in chunk:
            raise AskError(f"the stream ended with an error: {chunk['error']}")
        pieces += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
    return "".join(pieces), sum(1 for piece in pieces if piece)


async def show(
    asker: Asker, workers: Sequence[tuple[str, str]], folder: Path, say: Callable[[str], None] = print
) -> bool:
    """Ask all `CASES`, then time one request. True if every answer came and was right.

    `workers` are (role, URL); the pictures are saved in `folder`.
    """
    right = 0
    for number, (kind, seed, stream) in enumerate(CASES, 1):
        case = sample(kind, seed)
        say(f"\n{number}. {case.question}{_where(case, folder, number)}")
        right += await _ask_one(asker, case, stream, say)
    await _show_timeline(asker, workers, say)
    say(f"\n{right} of {len(CASES)} answers are right")
    return right == len(CASES)


def _where(case: Sample, folder: Path, number: int) -> str:
    """Save the pictures and say where."""
    paths = []
    for index, image in enumerate(case.images, 1):
        path = folder / f"question-{number}-image-{index}.png"
        image.save(path)
        paths.append(str(path))
    return f"   [{', '.join(paths)}]" if paths else ""


async def _ask_one(asker: Asker, case: Sample, stream: bool, say: Callable[[str], None]) -> bool:
    try:
        reply = await asker.ask(case.messages(), stream)
    except AskError as error:
        say(f"   failed   {error}")
        return False
    how = f", streamed in {reply.chunks} pieces" if stream else ""
    say(f"   answer   {reply.text}   ({reply.seconds:.2f} s{how})")
    if reply.text == case.answer:
        return True
    say(f"   WRONG: expected   {case.answer}")
    return False


async def _show_timeline(asker: Asker, workers: Sequence[tuple[str, str]], say: Callable[[str], None]) -> None:
    """The timeline of one streamed request with one picture that no cache has seen."""
    for attempt in range(_TIMELINE_TRIES):
        case = sample("shapes", 100 + attempt)
        before = await _read(asker, workers)
        try:
            reply = await asker.ask(case.messages(), stream=True)
        except AskError as error:
            say(f"\nno timeline: {error}")
            return
        # Workers observe some stages just after the answer has left.
        await asyncio.sleep(_SETTLE_S)
        line = timeline.between(before, await _read(asker, workers), reply.seconds)
        if line is not None:
            width, height = case.images[0].size
            say(f"\nOne request, stage by stage: a picture of {width}x{height} and {reply.chunks} pieces of text,")
            say(f"{reply.seconds * 1e3:.0f} ms at the client; the rest from the workers' own /metrics")
            for text in timeline.draw(line):
                say("   " + text)
            return
    say("\nno timeline: other requests came in between each time (is somebody else using the host?)")


async def _read(asker: Asker, workers: Sequence[tuple[str, str]]) -> timeline.Samples:
    return timeline.read([(role, await asker.page(url)) for role, url in workers])
