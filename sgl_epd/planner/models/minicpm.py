"""MiniCPM-V 2.5 and 2.6: an overview and up to nine slices, each resampled to 64 tokens."""

from __future__ import annotations

import dataclasses
import math

from sgl_epd.planner.models.fields import Json, dtype_bytes, flag, integer, section
from sgl_epd.planner.models.grid import check_size
from sgl_epd.planner.models.language import language_of, max_context, tied_embeddings
from sgl_epd.planner.models.siglip import siglip_tower
from sgl_epd.planner.models.spec import MediaSize, ModelSpec, VisionSpec, VisualMedia

_IMAGE_ID_TOKENS = 3
"""<image_id>, a number of (here) one digit, </image_id>."""
_VIDEO_SLICES = 1
"""The model card's setting for long videos; no image ids there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniCPMMedia(VisualMedia):
    """The processor's slicing (`get_sliced_grid`, `find_best_resize`, `get_refine_size` in its own code)."""

    slice_side: int
    max_slices: int
    patch: int
    rows: int
    image_ids: bool
    merge: int = 1
    """Sides are multiples of so many patches."""

    def image(self, width: int, height: int) -> MediaSize:
        check_size(width, height)
        return self._image(width, height, self.max_slices, _IMAGE_ID_TOKENS if self.image_ids else 0)

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        check_size(width, height, frames)
        return self._image(width, height, _VIDEO_SLICES, 0).times(frames)

    def _image(self, width: int, height: int, max_slices: int, id_tokens: int) -> MediaSize:
        grid = self.grid(width, height, max_slices)
        lengths = [self._patches(width, height, upscale=grid is None)]
        breaks = 0
        if grid is not None:
            columns, rows = grid
            # Slices are cut from a copy whose sides divide by the grid.
            wide = self._divided(width, columns, 1) / columns
            high = self._divided(height, rows, 1) / rows
            lengths += [self._patches(wide, high, upscale=True)] * (columns * rows)
            breaks = rows - 1
        patches, count = sum(lengths), len(lengths)
        return MediaSize(
            sequences=count,
            patches=patches,
            patches_squared=sum(length * length for length in lengths),
            embeddings=count * self.rows,
            prompt_tokens=count * (self.rows + 2) + breaks + id_tokens,
            pixels=patches * self.patch**2,
        )

    def grid(self, width: int, height: int, max_slices: int) -> tuple[int, int] | None:
        """(columns, rows) of slices, or None if the image is not sliced."""
        log_ratio = math.log(width / height)
        wanted = min(math.ceil(width * height / self.slice_side**2), max_slices)
        if wanted <= 1:
            return None
        best, best_error = (1, 1), float("inf")
        for count in (wanted - 1, wanted, wanted + 1):
            if not 1 < count <= max_slices:
                continue
            for columns in range(1, count + 1):
                rows, rest = divmod(count, columns)
                error = abs(log_ratio - math.log(columns / rows)) if rest == 0 else float("inf")
                if error < best_error:
                    best, best_error = (columns, rows), error
        return best

    def _patches(self, width: float, height: float, *, upscale: bool) -> int:
        """Of the overview or of one slice after resizing to about the area of one slice."""
        if upscale or width * height > self.slice_side**2:
            ratio = width / height
            height = int(self.slice_side / math.sqrt(ratio))
            width = int(height * ratio)
        step = self.patch * self.merge
        wide, high = self._divided(width, 1, step), self._divided(height, 1, step)
        return (wide // self.patch) * (high // self.patch)

    @staticmethod
    def _divided(length: float, parts: int, step: int) -> int:
        unit = parts * step
        return max(round(length / unit) * unit, unit)


def read_minicpm(name: str, config: Json, processor: Json) -> ModelSpec:
    """Raises `ConfigError`. The language model's fields stand at the top of this family's config."""
    vision = section(config, "vision_config")
    language = language_of(config, tied=tied_embeddings(config, config))
    slicing = config.get("slice_config") or {}
    queries = integer(config, "query_num", default=64)
    media = MiniCPMMedia(
        slice_side=integer(slicing, "scale_resolution", default=448),
        max_slices=integer(slicing, "max_slice_nums", default=9),
        patch=integer(vision, "patch_size", default=14),
        rows=queries,
        image_ids=flag(config, "use_image_id", True),
    )
    tower = siglip_tower(vision, drop_last=flag(config, "drop_vision_last_layer", False))
    return ModelSpec(
        name=name,
        family="minicpmv",
        language=language,
        vision=_with_resampler(tower, language.hidden, queries),
        media=media,
        max_context=max_context(config),
        dtype_bytes=dtype_bytes(config, config),
    )


def _with_resampler(tower: VisionSpec, out: int, queries: int) -> VisionSpec:
    """Queries, key/value projection, attention, three norms and the output projection."""
    attention = 4 * out * out + 4 * out
    params = queries * out + tower.hidden * out + attention + 6 * out + out * out
    return dataclasses.replace(tower, projector_params=params, embedding_dim=out)
