"""The towers that several families share: SigLIP and CLIP."""

from __future__ import annotations

from sgl_epd.planner.models.fields import Json, integer
from sgl_epd.planner.models.spec import VisionSpec


def siglip_tower(vision: Json, *, drop_last: bool = False) -> VisionSpec:
    """Without the pooling head, which no multimodal model here uses; the projector is the caller's."""
    return _tower(vision, layers=integer(vision, "num_hidden_layers") - drop_last, cls=False)


def clip_tower(vision: Json) -> VisionSpec:
    return _tower(vision, layers=integer(vision, "num_hidden_layers"), cls=True)


def patches_of(vision: Json) -> int:
    """Patches of one square image, without a class token."""
    return (integer(vision, "image_size") // integer(vision, "patch_size")) ** 2


def _tower(vision: Json, *, layers: int, cls: bool) -> VisionSpec:
    hidden, inner = integer(vision, "hidden_size"), integer(vision, "intermediate_size")
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    pixels = 3 * integer(vision, "patch_size") ** 2
    # CLIP: class token, norms before and after, no bias of the patch embedding. SigLIP: that bias, a norm after.
    around = 2 * hidden + 4 * hidden if cls else hidden + 2 * hidden
    embeddings = pixels * hidden + patches_of(vision) * hidden + around
    return VisionSpec(
        hidden=hidden,
        intermediate=inner,
        layers=layers,
        heads=integer(vision, "num_attention_heads"),
        gated=False,
        layer_params=layers * layer,
        tower_params=layers * layer + embeddings,
        projector_params=0,
        embedding_dim=hidden,
    )
