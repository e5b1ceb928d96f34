"""InternVL 1.5 to 3: up to twelve tiles of 448 x 448 in the image's shape and a thumbnail, 256 tokens each."""

from __future__ import annotations

import dataclasses

from sgl_epd.planner.models.fields import Json, dtype_bytes, flag, integer, section
from sgl_epd.planner.models.grid import check_size, closest_grid, tiles
from sgl_epd.planner.models.language import language_of, max_context, tied_embeddings
from sgl_epd.planner.models.spec import MediaSize, ModelSpec, VisionSpec, VisualMedia

_FRAME_TOKENS = 5
"""A video's frames are written as "Frame7: " and a line break around their tile; about so many tokens."""


@dataclasses.dataclass(frozen=True)
class InternVLMedia(VisualMedia):
    """`dynamic_preprocess` of InternVL's own processing; one tile for each frame of a video."""

    tile: int
    patch: int
    rows_per_tile: int
    min_tiles: int
    max_tiles: int
    thumbnail: bool

    def image(self, width: int, height: int) -> MediaSize:
        check_size(width, height)
        columns, rows = closest_grid(width, height, self.tile, self.min_tiles, self.max_tiles)
        count = columns * rows
        return self._tiles(count + (self.thumbnail and count > 1), markers=2)

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        check_size(width, height, frames)
        return self._tiles(frames, markers=frames * (2 + _FRAME_TOKENS))

    def _tiles(self, count: int, markers: int) -> MediaSize:
        patches = (self.tile // self.patch) ** 2 + 1
        return tiles(
            count,
            patches,
            self.rows_per_tile,
            pixels=self.tile**2,
            prompt_tokens=count * self.rows_per_tile + markers,
        )


def read_internvl(name: str, config: Json, processor: Json) -> ModelSpec:
    """Both layouts: the original remote-code one (`llm_config`) and transformers' own (`text_config`).

    Raises `ConfigError`.
    """
    text, vision = section(config, "llm_config", "text_config"), section(config, "vision_config")
    language = language_of(text, tied=tied_embeddings(config, text))
    tile, patch = _side(vision, "image_size", 448), _side(vision, "patch_size", 14)
    ratio = config.get("downsample_ratio", 0.5)
    shrink = round(1 / float(ratio))
    tiling = processor if "max_patches" in processor else config
    media = InternVLMedia(
        tile=tile,
        patch=patch,
        rows_per_tile=(tile // patch // shrink) ** 2,
        min_tiles=integer(tiling, "min_dynamic_patch", "min_patches", default=1),
        max_tiles=integer(tiling, "max_dynamic_patch", "max_patches", default=12),
        thumbnail=flag(config, "use_thumbnail", True),
    )
    return ModelSpec(
        name=name,
        family="internvl",
        language=language,
        vision=_vision(vision, language.hidden, tile // patch, shrink),
        media=media,
        max_context=max_context(text),
        dtype_bytes=dtype_bytes(config, text),
    )


def _side(vision: Json, name: str, default: int) -> int:
    """A square side; transformers writes it as a pair."""
    value = vision.get(name)
    return (
        integer({name: value[0]}, name) if isinstance(value, (list, tuple)) else integer(vision, name, default=default)
    )


def _vision(vision: Json, out: int, side: int, shrink: int) -> VisionSpec:
    hidden, layers = integer(vision, "hidden_size"), integer(vision, "num_hidden_layers")
    inner, patch = integer(vision, "intermediate_size"), _side(vision, "patch_size", 14)
    native = "qkv_bias" not in vision
    bias = 3 * hidden if flag(vision, "attention_bias" if native else "qkv_bias", False) else 0
    qk_norm = 2 * hidden if flag(vision, "use_qk_norm" if native else "qk_normalization", False) else 0
    norms = 2 * hidden * (1 if vision.get("norm_type", "layer_norm") == "rms_norm" else 2)
    scales = 2 * hidden
    layer = 4 * hidden * hidden + bias + hidden + 2 * hidden * inner + inner + hidden + norms + scales + qk_norm
    merged = hidden * shrink**2
    embeddings = hidden + 3 * patch * patch * hidden + hidden + (side * side + 1) * hidden
    return VisionSpec(
        hidden=hidden,
        intermediate=inner,
        layers=layers,
        heads=integer(vision, "num_attention_heads"),
        gated=False,
        layer_params=layers * layer,
        tower_params=layers * layer + embeddings,
        projector_params=2 * merged + merged * out + out + out * out + out,
        embedding_dim=out,
    )
