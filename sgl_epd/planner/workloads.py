"""Workloads under names: those of the EPD paper, and a few that show where its idea does not pay.

What the paper does not say is assumed, and `source` says so. Numbers in a name may be others than those listed:
`epd-synthetic-3`, `video-mme-24`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sgl_epd.errors import ConfigError
from sgl_epd.planner.arrivals import AtOnce, OnOff
from sgl_epd.planner.distributions import Bounded, Choice, Constant, LogNormal
from sgl_epd.planner.workload import Content, MediaSource, Phase, Reuse, Stream, Workload, read_workload
from sgl_epd.protocol.items import Modality

_PAPER = "arXiv 2501.05460v4"
_PHOTO = MediaSource(width=Constant(4032), aspect=Constant(4 / 3), copies=True)
_CHAT_TEXT, _CHAT_OUTPUT = LogNormal(300, 1.0, 4, 16384), LogNormal(180, 0.9, 1, 4096)
_WEB_IMAGES = MediaSource(width=LogNormal(500, 0.55, 64, 4096), aspect=Choice((4 / 3, 16 / 9, 1.0, 3 / 4)))
"""ModServe (arXiv 2502.00937) reports a median near 500 pixels and a 95th percentile above 1000."""


def _one(name: str, source: str, content: Content) -> Workload:
    return Workload(name=name, source=source, streams=(Stream(name=name, phases=(Phase(content=content),)),))


def _synthetic(images: int) -> Workload:
    content = Content(text_tokens=Constant(22), output_tokens=Constant(10), items=Constant(images), media=_PHOTO)
    source = (
        f"{_PAPER}, section 4.1: 22 text tokens, 10 output tokens, images of 4032 x 3024 (one image sent many times)"
    )
    return _one(f"epd-synthetic-{images}", source, content)


def _nextqa(frames: int) -> Workload:
    """Each frame is an item of its own, so that several encoders can share a video."""
    frame = MediaSource(modality=Modality.VIDEO, width=Constant(640), aspect=Constant(4 / 3))
    content = Content(
        text_tokens=Bounded(4, 21, 11.42), output_tokens=Bounded(1, 7, 2.75), items=Constant(frames), media=frame
    )
    source = f"{_PAPER}, section 4.1: 4 to 21 text tokens (mean 11.42), 1 to 7 output (2.75); 640 x 480 is assumed"
    return _one(f"nextqa-{frames}", source, content)


def _video_mme(frames: int) -> Workload:
    frame = MediaSource(modality=Modality.VIDEO, width=Constant(640), aspect=Constant(16 / 9))
    content = Content(text_tokens=Constant(100), output_tokens=Constant(10), items=Constant(frames), media=frame)
    source = f"{_PAPER}, section 4.2: uniformly sampled frames; 640 x 360, 100 text and 10 output tokens are assumed"
    return _one(f"video-mme-{frames}", source, content)


def _audio(clips: int) -> Workload:
    audio = MediaSource(modality=Modality.AUDIO, seconds=Constant(10))
    content = Content(text_tokens=Constant(22), output_tokens=Constant(10), items=Constant(clips), media=audio)
    return _one(
        f"audio-{clips}", f"{_PAPER}, appendix A.1; clips of 10 s, 22 text and 10 output tokens are assumed", content
    )


def _role_switch() -> Workload:
    def content(outputs: int) -> Content:
        return Content(text_tokens=Constant(22), output_tokens=Constant(outputs), items=Constant(1), media=_PHOTO)

    phases = (Phase(content=content(50), requests=10), Phase(content=content(500), requests=90))
    source = f"{_PAPER}, table 6: 10 requests of 50 output tokens, then 90 of 500, one image each"
    return Workload(name="role-switch", source=source, streams=(Stream(name="role-switch", phases=phases),))


def _offline(images: int) -> Workload:
    online = _synthetic(images).streams[0]
    stream = Stream(name="offline", phases=online.phases, arrivals=AtOnce())
    return Workload(name=f"offline-{images}", source=f"{_PAPER}, appendix A.3: all requests at once", streams=(stream,))


def _text() -> Workload:
    content = Content(text_tokens=_CHAT_TEXT, output_tokens=_CHAT_OUTPUT)
    return _one("text-only", "assumed: chat without images, where encoders stand idle", content)


def _small_image() -> Workload:
    content = Content(
        text_tokens=Constant(50),
        output_tokens=LogNormal(100, 0.6, 1, 1024),
        items=Constant(1),
        media=MediaSource(width=Constant(336), aspect=Constant(1)),
    )
    return _one("small-image", "assumed: one small image, little to encode", content)


def _mixed_streams(image_share: float, *, bursts: bool, reuse: float) -> tuple[Stream, ...]:
    images = MediaSource(
        width=_WEB_IMAGES.width, aspect=_WEB_IMAGES.aspect, reuse=Reuse(share=reuse, pool=2000) if reuse else None
    )
    with_images = Content(
        text_tokens=_CHAT_TEXT,
        output_tokens=_CHAT_OUTPUT,
        prefix_tokens=200,
        items=Choice((1, 2, 4, 8), (0.6, 0.2, 0.15, 0.05)),
        media=images,
    )
    text = Content(text_tokens=_CHAT_TEXT, output_tokens=_CHAT_OUTPUT, prefix_tokens=200)
    image_stream = Stream(name="images", phases=(Phase(content=with_images),), share=image_share)
    if bursts:
        on_off = OnOff(on_s=10, off_s=50, quiet=0.1)
        image_stream = Stream(name="images", phases=image_stream.phases, share=image_share, arrivals=on_off)
    return Stream(name="text", phases=(Phase(content=text),), share=1 - image_share), image_stream


def _mixed() -> Workload:
    video = MediaSource(
        modality=Modality.VIDEO,
        width=Choice((640, 1280)),
        aspect=Constant(16 / 9),
        frames=LogNormal(16, 0.5, 4, 64),
    )
    content = Content(text_tokens=_CHAT_TEXT, output_tokens=_CHAT_OUTPUT, items=Constant(1), media=video)
    videos = Stream(name="videos", phases=(Phase(content=content),), share=0.05)
    source = "assumed: 65 % text, 30 % with one to eight web images, 5 % with a video; 40 % of images seen before"
    return Workload(name="mixed", source=source, streams=(*_mixed_streams(0.3, bursts=False, reuse=0.4), videos))


def _bursts() -> Workload:
    source = (
        "assumed: steady text, and images of which most come in bursts of 10 s (ModServe, arXiv 2502.00937, saw such)"
    )
    return Workload(name="image-bursts", source=source, streams=_mixed_streams(0.4, bursts=True, reuse=0.0))


def _reuse() -> Workload:
    source = "assumed: as mixed without videos, and 80 % of images seen before (Zipf over 2,000)"
    return Workload(name="image-reuse", source=source, streams=_mixed_streams(0.5, bursts=False, reuse=0.8))


_FIXED: dict[str, Callable[[], Workload]] = {
    "text-only": _text,
    "small-image": _small_image,
    "mixed": _mixed,
    "image-bursts": _bursts,
    "image-reuse": _reuse,
    "role-switch": _role_switch,
}
_NUMBERED: dict[str, tuple[Callable[[int], Workload], tuple[int, ...]]] = {
    "epd-synthetic": (_synthetic, (1, 2, 4, 6, 8)),
    "nextqa": (_nextqa, (8,)),
    "video-mme": (_video_mme, (8, 16, 32, 64)),
    "audio": (_audio, (24,)),
    "offline": (_offline, (1,)),
}


def workload_names() -> list[str]:
    numbered = [f"{name}-{number}" for name, (_, numbers) in _NUMBERED.items() for number in numbers]
    return numbered + list(_FIXED)


def load_workload(name: str) -> Workload:
    """A name, or a JSON file. Raises `ConfigError`."""
    if name.endswith(".json"):
        return read_workload(Path(name))
    numbered = re.fullmatch(r"(.+)-([1-9]\d{0,3})", name)
    if numbered and numbered[1] in _NUMBERED:
        return _NUMBERED[numbered[1]][0](int(numbered[2]))
    if name in _FIXED:
        return _FIXED[name]()
    raise ConfigError(f"unknown workload {name!r}; known are {', '.join(workload_names())}, or give a JSON file")
