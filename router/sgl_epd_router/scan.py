"""One pass over a request body for each API: the fields that steer routing, the prompt's text, the media in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from sgl_epd_router.body import (
    ChatPeek,
    CompletionPeek,
    GeneratePeek,
    Part,
    Peek,
    ResponsesItem,
    ResponsesPart,
    ResponsesPeek,
    peek,
    raw_text,
)
from sgl_epd_router.media import MediaItem, Modality, media_item
from sgl_epd_router.outline import Outline, outline
from sgl_epd_router.route_key import MediaKey, RouteKey

BYTES_PER_TOKEN = 4
_TURN = b"\x1e"


class Scan(NamedTuple):
    """What one body says."""

    peek: Peek
    key: RouteKey
    media: tuple[MediaItem, ...] = ()
    batch: int | None = None
    """Number of prompts of a batch request, None when the request is a single prompt."""


class Scanner:
    """Scans bodies of one API. `read` turns a peek into text and media."""

    def __init__(self, struct: type[Peek], read: Callable[[Any, Outline], Prompt]) -> None:
        self._decoder = msgspec.json.Decoder(struct)
        self._struct = struct
        self._read = read

    def scan(self, body: bytes | bytearray, routing_key: str | None) -> Scan | None:
        """None when the body is not a JSON object."""
        cut = outline(body)
        found = peek(self._decoder, cut.json)
        if found is None:
            return None
        # A body of odd types was read leniently, see `peek`: its prompt is not known.
        prompt = self._read(found, cut) if type(found) is self._struct else Prompt(b"", (), None)
        return Scan(found, route_key(found, prompt, routing_key), prompt.media, prompt.batch)


class Prompt(NamedTuple):
    text: bytes
    media: tuple[MediaItem, ...]
    batch: int | None


def route_key(found: Peek, prompt: Prompt, routing_key: str | None) -> RouteKey:
    media = tuple([MediaKey(m.content_hash, m.offset, m.tokens, m.patches) for m in prompt.media])
    tokens = len(prompt.text) // BYTES_PER_TOKEN + sum([m.tokens for m in media])
    patches = sum([m.patches for m in media])
    return RouteKey(raw_text(found.model), prompt.text, media, tokens, patches, routing_key)


def read_chat(found: ChatPeek, cut: Outline) -> Prompt:
    text = bytearray()
    media: list[MediaItem] = []
    for message in found.messages:
        text += _TURN + message.role.encode()
        content = message.content
        if isinstance(content, str):
            text += content.encode("utf-8", "surrogatepass")
        elif content is not None:
            for part in content:
                if part.text:
                    text += part.text.encode("utf-8", "surrogatepass")
                media.extend(_part_media(part, cut, len(text)))
    return Prompt(bytes(text), tuple(media), None)


def _part_media(part: Part, cut: Outline, offset: int) -> Iterator[MediaItem]:
    sources = (
        (Modality.IMAGE, part.image_url.url if part.image_url else None),
        (Modality.VIDEO, part.video_url.url if part.video_url else None),
        (Modality.AUDIO, part.audio_url.url if part.audio_url else None),
        (Modality.AUDIO, part.input_audio.data if part.input_audio else None),
    )
    for modality, raw in sources:
        item = media_item(modality, raw, offset, cut) if raw else None
        if item is not None:
            yield item


def read_completion(found: CompletionPeek, cut: Outline) -> Prompt:
    return Prompt(bytes(found.prompt), (), batch_size(found.prompt))


def read_generate(found: GeneratePeek, cut: Outline) -> Prompt:
    prompt = found.text or found.input_ids
    media = [
        *_flat_media(Modality.IMAGE, found.image_data, cut),
        *_flat_media(Modality.VIDEO, found.video_data, cut),
        *_flat_media(Modality.AUDIO, found.audio_data, cut),
    ]
    return Prompt(bytes(prompt), tuple(media), batch_size(prompt) if prompt else _embeds_batch_size(found.input_embeds))


def read_responses(found: ResponsesPeek, cut: Outline) -> Prompt:
    text = bytearray((found.instructions or "").encode("utf-8", "surrogatepass"))
    media: list[MediaItem] = []
    items = [ResponsesItem("user", found.input)] if isinstance(found.input, str) else found.input
    for item in items:
        text += _TURN + item.role.encode()
        parts = [ResponsesPart(item.content)] if isinstance(item.content, str) else item.content or ()
        for part in parts:
            text += part.text.encode("utf-8", "surrogatepass")
            if part.image_url and (image := media_item(Modality.IMAGE, part.image_url, len(text), cut)):
                media.append(image)
    return Prompt(bytes(text), tuple(media), None)


def read_nothing(_: Peek, cut: Outline) -> Prompt:
    return Prompt(b"", (), None)


def _flat_media(modality: Modality, raw: msgspec.Raw, cut: Outline) -> Iterator[MediaItem]:
    """`image_data` and the like: one item, a list of items, or (batches) a list of lists."""
    kind = bytes(memoryview(raw)[:1])
    if kind == b"[":
        for element in msgspec.json.decode(raw, type=list[msgspec.Raw]):
            yield from _flat_media(modality, element, cut)
    elif kind == b'"' and (item := media_item(modality, raw, cut=cut)):
        yield item
    elif kind == b"{" and (url := msgspec.json.decode(raw, type=_UrlObject).url):
        yield from _flat_media(modality, url, cut)


class _UrlObject(msgspec.Struct):
    url: msgspec.Raw = msgspec.Raw(b"")


def batch_size(prompt: msgspec.Raw) -> int | None:
    """How many prompts there are: None for a string or a list of token ids, else the length of the list."""
    if bytes(memoryview(prompt)[:1]) != b"[":
        return None
    elements = msgspec.json.decode(prompt, type=list[msgspec.Raw])
    if not elements or bytes(memoryview(elements[0])[:1]) not in (b'"', b"["):
        return None
    return len(elements)


def _embeds_batch_size(embeds: msgspec.Raw) -> int | None:
    """A single prompt is a list of vectors, a batch a list of such lists."""
    if bytes(memoryview(embeds)[:1]) != b"[":
        return None
    elements = msgspec.json.decode(embeds, type=list[msgspec.Raw])
    return len(elements) if elements and bytes(elements[0])[1:].lstrip()[:1] == b"[" else None


CHAT = Scanner(ChatPeek, read_chat)
COMPLETION = Scanner(CompletionPeek, read_completion)
GENERATE = Scanner(GeneratePeek, read_generate)
RESPONSES = Scanner(ResponsesPeek, read_responses)
OTHER = Scanner(Peek, read_nothing)
