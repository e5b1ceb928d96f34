"""Llama 3.2 Vision: up to four tiles whose embeddings never enter the prompt; some layers attend to them instead."""

from __future__ import annotations

import dataclasses

from sgl_epd.planner.models.fields import Json, dtype_bytes, integer, section
from sgl_epd.planner.models.grid import check_size
from sgl_epd.planner.models.language import language_of, max_context, tied_embeddings
from sgl_epd.planner.models.spec import MediaSize, ModelSpec, VisionSpec, VisualMedia

_EXTRA_EMBEDDINGS = 8
"""Input embeddings beyond the vocabulary, for the image token (`MllamaTextModel` in transformers)."""
_ASPECT_RATIOS = 9
"""Of four tiles: eight shapes and the padding."""


@dataclasses.dataclass(frozen=True)
class MllamaMedia(VisualMedia):
    """Every image is padded to the full number of tiles: the processor returns, and SGLang encodes, all of them."""

    side: int
    patches: int
    max_tiles: int

    def image(self, width: int, height: int) -> MediaSize:
        check_size(width, height)
        tokens = self.max_tiles * self.patches
        # The tiles of one image attend to each other.
        return MediaSize(1, tokens, tokens * tokens, tokens, 1, self.max_tiles * self.side**2)

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        check_size(width, height, frames)
        return self.image(width, height).times(frames)

    def used_tiles(self, width: int, height: int) -> tuple[int, int]:
        """(down, across) tiles of the canvas that the image itself is drawn on; the rest is padding.

        `get_optimal_tiled_canvas` of transformers' Mllama processor: the least enlargement, else the least shrinking,
        of equal ones the smallest canvas.
        """
        check_size(width, height)
        many = self.max_tiles
        grids = [
            (down, across) for down in range(1, many + 1) for across in range(1, many + 1) if down * across <= many
        ]

        def scale(grid: tuple[int, int]) -> float:
            return min(grid[0] * self.side / height, grid[1] * self.side / width)

        larger = [scale(grid) for grid in grids if scale(grid) >= 1]
        chosen = min(larger) if larger else max(scale(grid) for grid in grids)
        return min((grid for grid in grids if scale(grid) == chosen), key=lambda grid: grid[0] * grid[1])


def read_mllama(name: str, config: Json, processor: Json) -> ModelSpec:
    """Raises `ConfigError`."""
    text, vision = section(config, "text_config"), section(config, "vision_config")
    cross = len(text.get("cross_attention_layers") or ())
    language = language_of(
        text, tied=tied_embeddings(config, text), cross_layers=cross, extra_embeddings=_EXTRA_EMBEDDINGS
    )
    side, patch = integer(vision, "image_size"), integer(vision, "patch_size")
    patches, many = (side // patch) ** 2 + 1, integer(vision, "max_num_tiles", default=4)
    return ModelSpec(
        name=name,
        family="mllama",
        language=language,
        vision=_vision(vision, patches, many, language.hidden),
        media=MllamaMedia(side, patches, many),
        max_context=max_context(text),
        dtype_bytes=dtype_bytes(config, text),
    )


def _vision(vision: Json, patches: int, many: int, out: int) -> VisionSpec:
    hidden, inner = integer(vision, "hidden_size"), integer(vision, "intermediate_size")
    local, gated = integer(vision, "num_hidden_layers"), integer(vision, "num_global_layers")
    layer = 4 * hidden * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    layers = (local + gated) * layer + 2 * gated
    pixels = 3 * integer(vision, "patch_size") ** 2 * hidden
    positions = patches * hidden + 1 + _ASPECT_RATIOS * many * patches * hidden
    tile_embeddings = 2 * (_ASPECT_RATIOS * many * hidden + 1)
    width = integer(vision, "vision_output_dim")
    return VisionSpec(
        hidden=hidden,
        intermediate=inner,
        layers=local + gated,
        heads=integer(vision, "attention_heads", "num_attention_heads", default=16),
        gated=False,
        layer_params=layers,
        tower_params=layers + pixels + hidden + positions + tile_embeddings + 4 * hidden,
        projector_params=width * out + out,
        embedding_dim=out,
    )
