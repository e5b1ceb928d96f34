"""Input ids and positions from grids alone: no download, no decoding, no pixels.

Upstream lays a prompt out from embeddings and grids when embeddings come from an encoder
(`BaseMultimodalProcessor.get_validated_mm_data`, 0.5.23), for each model in its own way. Here it gets placeholders of
the right length and no width, so every model that upstream serves with separate encoders works, and nothing is copied.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from sgl_epd.protocol.reference import Reference

_MAX_MERGE = 64
"""Patches per token, of the models known: 4. Bounds the ids that a false grid could make upstream lay out."""


def build(processor: Any, prompt: str | list[int], refs: Sequence[Reference], max_tokens: int | None) -> Any:
    """What `processor.process_mm_data_async` would return for the images, but without features.

    Raises `ValueError` if the references do not fit the prompt, each other or the model.
    """
    from sglang.srt.managers.schedule_batch import Modality

    _check_sizes(refs, max_tokens)
    rows = sum(ref.num_tokens for ref in refs)
    try:
        output = processor.get_validated_mm_data(
            prompt,
            {Modality.IMAGE: torch.empty(rows, 0)},
            img_grid_thw=torch.tensor([ref.grid for ref in refs], dtype=torch.long),
        )
    except (RuntimeError, IndexError, AssertionError) as error:
        raise ValueError(f"the references do not fit the prompt: {error}") from error
    _identify(output.mm_items, refs)
    output.padded_input_ids = type(output).build_padded_input_ids(output.input_ids, output.mm_items)
    return output


def _check_sizes(refs: Sequence[Reference], max_tokens: int | None) -> None:
    for ref in refs:
        if math.prod(ref.grid) > _MAX_MERGE * ref.num_tokens:
            raise ValueError(f"item {ref.item_id!r}: a grid of {ref.grid} does not make {ref.num_tokens} tokens")
    rows = sum(ref.num_tokens for ref in refs)
    if max_tokens is not None and rows >= max_tokens:
        raise ValueError(f"the images make {rows} tokens; this worker takes prompts below {max_tokens}")


def _identify(items: Sequence[Any], refs: Sequence[Reference]) -> None:
    """Gives each item the identity of its key, which decides its pad values and so its place in the radix cache."""
    if len(items) != len(refs):
        raise ValueError(f"the prompt has room for {len(items)} images, but there are {len(refs)} references")
    for item, ref in zip(items, refs, strict=True):
        (start, end) = item.offsets[0]
        if end - start + 1 != ref.num_tokens:
            raise ValueError(f"item {ref.item_id!r}: a grid of {ref.grid} does not make {ref.num_tokens} tokens")
        item.precomputed_embeddings = None
        item.set_identity(hashlib.sha256(ref.key).digest())
