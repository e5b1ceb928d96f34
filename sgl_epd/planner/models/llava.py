"""LLaVA 1.5, LLaVA-NeXT and LLaVA-OneVision: one square image, or that and a grid of squares (`anyres`)."""

from __future__ import annotations

import dataclasses
import math

from sgl_epd.planner.models.fields import Json, dtype_bytes, integer, section
from sgl_epd.planner.models.grid import check_size, tiles
from sgl_epd.planner.models.language import language_of, max_context, tied_embeddings
from sgl_epd.planner.models.siglip import clip_tower, patches_of, siglip_tower
from sgl_epd.planner.models.spec import MediaSize, ModelSpec, VisionSpec, VisualMedia

Sizes = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class SquareMedia(VisualMedia):
    """Every image is cropped to one square; a video is its frames."""

    side: int
    patches: int
    rows: int

    def image(self, width: int, height: int) -> MediaSize:
        check_size(width, height)
        return tiles(1, self.patches, self.rows, pixels=self.side**2)

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        check_size(width, height, frames)
        return tiles(frames, self.patches, self.rows, pixels=self.side**2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyresMedia(VisualMedia):
    """The whole image as one square and a grid of squares; the grid's padding is cut off again after encoding.

    `select_best_resolution` and `_get_unpadded_features` of transformers' LLaVA-NeXT and -OneVision processors.
    """

    side: int
    grid_side: int
    """Rows of patches in a square."""
    cls: int
    """1 if the tower adds a class token (dropped from what is delivered)."""
    resolutions: Sizes
    """(height, width) of the possible grids."""
    most_squares: int | None
    """Beyond so many squares of patches the grid is scaled down (OneVision's anyres_max)."""
    pooled_video: bool

    def image(self, width: int, height: int) -> MediaSize:
        check_size(width, height)
        high, wide = self._best(width, height)
        squares = 1 + (high // self.side) * (wide // self.side)
        rows = self.grid_side**2 + self._grid_rows(width, height, high // self.side, wide // self.side)
        size = tiles(squares, self.grid_side**2 + self.cls, 0, pixels=self.side**2)
        return size._replace(embeddings=rows, prompt_tokens=rows)

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        check_size(width, height, frames)
        rows = math.ceil(self.grid_side / 2) ** 2 if self.pooled_video else self.grid_side**2
        size = tiles(frames, self.grid_side**2 + self.cls, rows, pixels=self.side**2)
        newline = 1 if self.pooled_video else 0
        return size._replace(embeddings=size.embeddings + newline, prompt_tokens=size.prompt_tokens + newline)

    def _best(self, width: int, height: int) -> tuple[int, int]:
        """The grid that keeps most of the image's pixels, of those the one with least left over."""

        def merit(resolution: tuple[int, int]) -> tuple[int, int]:
            high, wide = resolution
            scale = min(wide / width, high / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            return kept, -(wide * high - kept)

        return max(self.resolutions, key=merit)

    def _grid_rows(self, width: int, height: int, down: int, across: int) -> int:
        """Patches of the grid without padding, and one row more at the end of each line."""
        high, wide = self.grid_side * down, self.grid_side * across
        if width / height > wide / high:
            high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
        else:
            wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
        if self.most_squares is not None:
            ratio = math.sqrt(high * wide / (self.most_squares * self.grid_side**2))
            if ratio > 1.1:
                high, wide = int(high // ratio), int(wide // ratio)
        return high * wide + high


def read_llava(name: str, config: Json, processor: Json) -> ModelSpec:
    """Raises `ConfigError`."""
    text, vision = section(config, "text_config"), section(config, "vision_config")
    kind = str(config.get("model_type"))
    language = language_of(text, tied=tied_embeddings(config, text))
    cls = str(vision.get("model_type")) == "clip_vision_model"
    spec = clip_tower(vision) if cls else siglip_tower(vision)
    # An image newline is a learned row of the anyres models.
    newline = 0 if kind == "llava" else language.hidden
    projector = spec.hidden * language.hidden + language.hidden * language.hidden + 2 * language.hidden
    return ModelSpec(
        name=name,
        family=kind,
        language=language,
        vision=_projected(spec, projector + newline, language.hidden),
        media=_media(kind, config, vision, cls),
        max_context=max_context(text),
        dtype_bytes=dtype_bytes(config, text),
    )


def _projected(tower: VisionSpec, params: int, out: int) -> VisionSpec:
    return dataclasses.replace(tower, projector_params=params, embedding_dim=out)


def _media(kind: str, config: Json, vision: Json, cls: bool) -> SquareMedia | AnyresMedia:
    side, patches = integer(vision, "image_size"), patches_of(vision)
    if kind == "llava":
        kept = cls and config.get("vision_feature_select_strategy") == "full"
        return SquareMedia(side, patches + cls, patches + kept)
    aspect = str(config.get("vision_aspect_ratio", "anyres_max_9"))
    return AnyresMedia(
        side=side,
        grid_side=side // integer(vision, "patch_size"),
        cls=int(cls),
        resolutions=tuple((high, wide) for high, wide in config["image_grid_pinpoints"]),
        most_squares=int(aspect.removeprefix("anyres_max_")) if kind == "llava_onevision" else None,
        pooled_video=kind == "llava_onevision",
    )
