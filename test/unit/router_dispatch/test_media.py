"""Media items: dimensions out of headers (checked against Pillow), hashes, estimated work, place in the prompt."""

from __future__ import annotations

import base64
import io
import json
import random
from typing import Any

import msgspec
import pytest
from PIL import Image

from sgl_epd_router.image_header import NEED_MORE, image_size
from sgl_epd_router.media import (
    MAX_IMAGE_PATCHES,
    UNKNOWN_AUDIO_PATCHES,
    UNKNOWN_IMAGE_PATCHES,
    UNKNOWN_VIDEO_PATCHES,
    MediaItem,
    Modality,
    media_item,
)
from sgl_epd_router.scan import CHAT, COMPLETION, GENERATE, RESPONSES, Scan, Scanner, batch_size

SIZES = [(1, 1), (640, 480), (1, 3000), (4096, 17)]


def encoded(size: tuple[int, int], form: str, **kwargs: Any) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (200, 30, 60)).save(out, form, **kwargs)
    return out.getvalue()


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("PNG", {}),
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("GIF", {}),
    ("BMP", {}),
    ("WEBP", {}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"exif": b"Exif\0\0" + b"x" * 10}),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("form", "kwargs"), FORMS)
def test_dimensions_out_of_the_header(form: str, kwargs: dict[str, Any], size: tuple[int, int]) -> None:
    assert image_size(encoded(size, form, **kwargs)) == size


@pytest.mark.parametrize(("form", "kwargs"), FORMS)
def test_a_cut_header_never_gives_a_wrong_size(form: str, kwargs: dict[str, Any]) -> None:
    data = encoded((640, 480), form, **kwargs)
    sizes = {image_size(data[:length]) for length in range(min(len(data), 2000))}
    assert sizes <= {(640, 480), NEED_MORE, None}


def test_a_jpeg_behind_a_large_profile_and_a_thumbnail() -> None:
    thumbnail = encoded((16, 16), "JPEG")
    data = encoded((800, 600), "JPEG", icc_profile=b"p" * 300_000, exif=b"Exif\0\0" + thumbnail)
    assert image_size(data) == (800, 600)
    item = item_of(data_uri(data))
    assert item is not None
    assert (item.width, item.height) == (800, 600)


@pytest.mark.parametrize("data", [b"", b"hello world, this is text", b"%PDF-1.7", b"\xff\xd8\xff\xd9", b"\xff\xd8\x00"])
def test_what_is_no_image(data: bytes) -> None:
    assert image_size(data) in (None, NEED_MORE)


def test_random_bytes_behind_a_signature_do_not_crash() -> None:
    rng = random.Random(5)
    for signature in (b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF0000WEBPVP8X", b"RIFF0000WEBPVP8 ", b"BM"):
        for _ in range(300):
            image_size(signature + rng.randbytes(rng.randrange(60)))


def data_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def item_of(url: str, modality: Modality = Modality.IMAGE) -> MediaItem | None:
    return media_item(modality, msgspec.Raw(json.dumps(url).encode()))


def test_the_same_image_has_the_same_hash_whatever_it_is_wrapped_in() -> None:
    data = encoded((64, 48), "PNG")
    items = [item_of(data_uri(data)), item_of(data_uri(data, "image/x-png"))]
    assert all(item and len(item.content_hash) == 16 for item in items)
    assert len({item.content_hash for item in items if item}) == 1
    other = item_of(data_uri(encoded((64, 49), "PNG")))
    assert other and items[0] and other.content_hash != items[0].content_hash


def test_escaped_slashes_do_not_hide_the_size() -> None:
    data = encoded((321, 123), "JPEG")
    raw = json.dumps(data_uri(data)).replace("/", "\\/").encode()
    item = media_item(Modality.IMAGE, msgspec.Raw(raw))
    assert item is not None
    assert (item.width, item.height) == (321, 123)


def test_urls_are_hashed_as_urls() -> None:
    a, b = item_of("http://h/a.png"), item_of("http://h/b.png")
    assert a and b
    assert a.content_hash != b.content_hash
    assert (a.width, a.patches) == (None, UNKNOWN_IMAGE_PATCHES)


@pytest.mark.parametrize(
    "url", ["data:image/png;base64,", "data:image/png;base64,!!!!", "data:,hello", "data:image/png;base64,AAAA"]
)
def test_broken_data_uris_are_items_without_a_size(url: str) -> None:
    item = item_of(url)
    assert item is not None
    assert (item.width, item.height) == (None, None)


def test_work_follows_the_pixels() -> None:
    def patches(width: int, height: int) -> int:
        return MediaItem(Modality.IMAGE, b"", width, height).patches

    assert patches(1120, 1120) == 6400
    assert patches(1, 1) == 4
    assert patches(100_000, 100_000) == MAX_IMAGE_PATCHES
    assert MediaItem(Modality.IMAGE, b"", 1120, 1120).tokens == 1600
    assert MediaItem(Modality.VIDEO, b"").patches == UNKNOWN_VIDEO_PATCHES
    assert MediaItem(Modality.AUDIO, b"").patches == UNKNOWN_AUDIO_PATCHES


def scan(scanner: Scanner, body: dict[str, Any]) -> Scan:
    found = scanner.scan(json.dumps(body).encode(), "session")
    assert found is not None
    return found


def test_every_kind_of_media_is_found_in_order_with_its_place() -> None:
    """Row 33: video was skipped."""
    image = data_uri(encoded((56, 28), "PNG"))
    content = [
        {"type": "text", "text": "one"},
        {"type": "image_url", "image_url": {"url": image, "detail": "high"}},
        {"type": "text", "text": "two"},
        {"type": "video_url", "video_url": {"url": "http://h/v.mp4"}},
        {"type": "audio_url", "audio_url": {"url": "http://h/a.wav"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": image}},
    ]
    found = scan(CHAT, {"model": "m", "messages": [{"role": "user", "content": content}]})
    kinds = [item.modality.value for item in found.media]
    assert kinds == ["image", "video", "audio", "audio", "image"]
    text = found.key.text
    assert text == b"\x1euseronetwo"
    assert [text[: item.offset] for item in found.key.media[:2]] == [b"\x1euserone", b"\x1euseronetwo"]
    assert found.key.media[0].content_hash == found.key.media[4].content_hash
    assert found.key.media[0].patches == 8
    assert found.key.patches == sum(m.patches for m in found.key.media)
    assert found.key.prompt_tokens == len(text) // 4 + sum(m.tokens for m in found.key.media)
    assert (found.key.model, found.key.routing_key) == ("m", "session")


def test_chats_with_a_common_beginning_have_keys_with_one() -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "q1"}]
    longer = [
        *first,
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "q2"}]},
    ]
    a, b = scan(CHAT, {"messages": first}), scan(CHAT, {"messages": longer})
    assert b.key.text.startswith(a.key.text)


def test_generate_takes_media_in_many_shapes() -> None:
    image = base64.b64encode(encoded((280, 280), "PNG")).decode()
    bodies = [
        {"text": "t", "image_data": image},
        {"text": "t", "image_data": [image, "http://h/x.png"]},
        {"text": ["t", "u"], "image_data": [[image], [image, {"url": "http://h/x.png"}]]},
        {"text": "t", "image_data": None, "video_data": "v.mp4", "audio_data": ["a.wav"]},
        {"text": "t", "image_data": {"format": "processor_output"}},
    ]
    counts = [len(scan(GENERATE, body).media) for body in bodies]
    assert counts == [1, 2, 3, 2, 0]
    assert scan(GENERATE, bodies[0]).media[0].width == 280


def test_responses_text_and_images() -> None:
    assert scan(RESPONSES, {"input": "hi", "instructions": "be"}).key.text == b"be\x1euserhi"
    image = data_uri(encoded((28, 28), "PNG"))
    content = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": image}]
    found = scan(
        RESPONSES, {"input": [{"role": "user", "content": content}, {"type": "function_call_output", "output": "x"}]}
    )
    assert (found.key.text, len(found.media)) == (b"\x1euserlook\x1e", 1)


@pytest.mark.parametrize(
    ("body", "batch"),
    [
        ({"prompt": "a"}, None),
        ({"prompt": [1, 2]}, None),
        ({"prompt": ["a"]}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [[1], [2, 3]]}, 2),
        ({"prompt": []}, None),
        ({}, None),
    ],
)
def test_batches_of_completions(body: dict[str, Any], batch: int | None) -> None:
    assert scan(COMPLETION, body).batch == batch


@pytest.mark.parametrize(
    ("body", "batch"),
    [
        ({"text": "a"}, None),
        ({"text": ["a", "b"]}, 2),
        ({"input_ids": [1, 2]}, None),
        ({"input_ids": [[1], [2]]}, 2),
        ({"input_embeds": [[0.1, 0.2], [0.3, 0.4]]}, None),
        ({"input_embeds": [[[0.1, 0.2]], [[0.3, 0.4]]]}, 2),
    ],
)
def test_batches_of_generate(body: dict[str, Any], batch: int | None) -> None:
    assert scan(GENERATE, body).batch == batch


def test_batch_size_of_no_list() -> None:
    assert [batch_size(msgspec.Raw(raw)) for raw in (b"", b"5", b"{}", b'"x"')] == [None] * 4
