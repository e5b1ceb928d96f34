"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images keep their shape, patches are merged 2 x 2, frames in pairs."""

from __future__ import annotations

import dataclasses
import math

from sgl_epd.errors import BadRequestError
from sgl_epd.planner.models.fields import Json, dtype_bytes, integer, section
from sgl_epd.planner.models.grid import check_size
from sgl_epd.planner.models.language import language_of, max_context, tied_embeddings
from sgl_epd.planner.models.spec import MediaSize, ModelSpec, VisionSpec, VisualMedia

_MOST_ASPECT = 200
_TIMESTAMP_TOKENS = 8
"""Qwen3-VL writes "<1.5 seconds>" before each pair of frames; about so many tokens with the markers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenMedia(VisualMedia):
    """`smart_resize` of transformers' Qwen2-VL and Qwen3-VL processors."""

    patch: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int
    min_video_pixels: int
    max_video_pixels: int
    pixels_over_frames: bool
    """Limits of a video are for all of its frames together (Qwen3-VL), not for each frame."""
    image_markers: int = 2
    """<|vision_start|> and <|vision_end|>."""

    def image(self, width: int, height: int) -> MediaSize:
        check_size(width, height)
        width, height = self._resize(width, height, 1, self.min_pixels, self.max_pixels)
        return self._size(width, height, 1, self.image_markers)

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        check_size(width, height, frames)
        pairs = -(-frames // self.temporal)
        together = 1
        if self.pixels_over_frames:
            together = frames
            if min(width, height) < self.patch * self.merge:
                scale = max(self.patch * self.merge / height, self.patch * self.merge / width)
                width, height = int(width * scale), int(height * scale)
        width, height = self._resize(width, height, together, self.min_video_pixels, self.max_video_pixels)
        markers = pairs * _TIMESTAMP_TOKENS if self.pixels_over_frames else self.image_markers
        return self._size(width, height, pairs, markers)

    def _resize(self, width: int, height: int, frames: int, least: int, most: int) -> tuple[int, int]:
        if max(width, height) > _MOST_ASPECT * min(width, height):
            raise BadRequestError(
                f"an image of {width} x {height} pixels is more than {_MOST_ASPECT} times as long as wide"
            )
        factor = self.patch * self.merge
        sides = (round(width / factor) * factor, round(height / factor) * factor)
        area = sides[0] * sides[1] * (round(frames / self.temporal) * self.temporal if frames > 1 else 1)
        if area > most:
            shrink = math.sqrt(frames * height * width / most)
            width, height = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
            return width, height
        if area < least:
            grow = math.sqrt(least / (frames * height * width))
            width, height = (math.ceil(side * grow / factor) * factor for side in (width, height))
            return width, height
        return sides

    def _size(self, width: int, height: int, times: int, markers: int) -> MediaSize:
        patches = (width // self.patch) * (height // self.patch)
        rows = times * patches // self.merge**2
        return MediaSize(times, times * patches, times * patches**2, rows, rows + markers, times * width * height)


def read_qwen(name: str, config: Json, processor: Json) -> ModelSpec:
    """Raises `ConfigError`. `processor` is preprocessor_config.json, or empty for the family's defaults."""
    vision, text = section(config, "vision_config"), config.get("text_config") or config
    language = language_of(text, tied=tied_embeddings(config, text))
    kind = str(config.get("model_type"))
    spec = _vision2(vision, language.hidden) if kind == "qwen2_vl" else _vision2_5(vision)
    if kind.startswith("qwen3"):
        spec = _vision3(vision)
    return ModelSpec(
        name=name,
        family=kind,
        language=language,
        vision=spec,
        media=_media(vision, processor, qwen3=kind.startswith("qwen3")),
        max_context=max_context(text),
        dtype_bytes=dtype_bytes(config, text),
    )


def _media(vision: Json, processor: Json, *, qwen3: bool) -> QwenMedia:
    patch = integer(vision, "patch_size", default=16 if qwen3 else 14)
    merge = integer(vision, "spatial_merge_size", default=2)
    size = processor.get("size") or {}
    unit = (patch * merge) ** 2
    return QwenMedia(
        patch=patch,
        merge=merge,
        temporal=integer(vision, "temporal_patch_size", default=2),
        min_pixels=processor.get("min_pixels") or size.get("shortest_edge") or 4 * unit,
        max_pixels=processor.get("max_pixels") or size.get("longest_edge") or 16384 * unit,
        min_video_pixels=128 * unit,
        max_video_pixels=768 * unit,
        pixels_over_frames=qwen3,
    )


def _patch_weights(vision: Json, hidden: int, default: int) -> int:
    channels = integer(vision, "in_channels", "in_chans", default=3)
    patch, temporal = integer(vision, "patch_size", default=default), integer(vision, "temporal_patch_size", default=2)
    return channels * temporal * patch * patch * hidden


def _vision2(vision: Json, out: int) -> VisionSpec:
    hidden, layers = integer(vision, "embed_dim", default=1280), integer(vision, "depth")
    inner = hidden * integer(vision, "mlp_ratio", default=4)
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    merged = hidden * integer(vision, "spatial_merge_size", default=2) ** 2
    return VisionSpec(
        hidden=hidden,
        intermediate=inner,
        layers=layers,
        heads=integer(vision, "num_heads"),
        gated=False,
        layer_params=layers * layer,
        tower_params=layers * layer + _patch_weights(vision, hidden, 14),
        projector_params=2 * hidden + merged * merged + merged + merged * out + out,
        embedding_dim=out,
    )


def _vision2_5(vision: Json) -> VisionSpec:
    hidden, layers = integer(vision, "hidden_size"), integer(vision, "depth")
    inner, out = integer(vision, "intermediate_size"), integer(vision, "out_hidden_size")
    layer = 4 * hidden * hidden + 4 * hidden + 3 * hidden * inner + 2 * inner + hidden + 2 * hidden
    merged = hidden * integer(vision, "spatial_merge_size", default=2) ** 2
    patch = integer(vision, "patch_size", default=14)
    full = len(vision.get("fullatt_block_indexes") or range(layers))
    return VisionSpec(
        hidden=hidden,
        intermediate=inner,
        layers=layers,
        heads=integer(vision, "num_heads"),
        gated=True,
        layer_params=layers * layer,
        tower_params=layers * layer + _patch_weights(vision, hidden, 14),
        projector_params=hidden + merged * merged + merged + merged * out + out,
        embedding_dim=out,
        windowed_layers=layers - full,
        window=(integer(vision, "window_size", default=112) // patch) ** 2,
    )


def _vision3(vision: Json) -> VisionSpec:
    hidden, layers = integer(vision, "hidden_size"), integer(vision, "depth")
    inner, out = integer(vision, "intermediate_size"), integer(vision, "out_hidden_size")
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    merged = hidden * integer(vision, "spatial_merge_size", default=2) ** 2
    deep = len(vision.get("deepstack_visual_indexes") or ())
    merger = merged * merged + merged + merged * out + out
    positions = integer(vision, "num_position_embeddings", default=2304) * hidden
    return VisionSpec(
        hidden=hidden,
        intermediate=inner,
        layers=layers,
        heads=integer(vision, "num_heads"),
        gated=False,
        layer_params=layers * layer,
        tower_params=layers * layer + _patch_weights(vision, hidden, 16) + hidden + positions,
        projector_params=merger + 2 * hidden + deep * (merger + 2 * merged),
        embedding_dim=out * (1 + deep),
    )
