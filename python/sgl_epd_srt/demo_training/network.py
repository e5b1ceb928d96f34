"""The transformers model, and a forward pass over its weights that is quick on CPUs.

The quick forward differs from the stock one only in layout: pictures of one size attend as one batch, the patch
convolution (the same frame twice) is one matrix product, and logits are computed for answer tokens alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgl_epd_srt.demo_training.batches import CELL_CLASSES, NAMES, RANKS, TINTS, Batch
from sgl_epd_srt.demo_training.recipe import IMAGE_MEAN, IMAGE_STD, MERGE, PATCH, Recipe
from sgl_epd_srt.demo_training.tokens import Words


def build_model(recipe: Recipe, tokenizer: Any) -> Any:
    """A freshly initialised `Qwen2VLForConditionalGeneration` in float32."""
    from transformers import AttentionInterface, Qwen2VLConfig, Qwen2VLForConditionalGeneration

    token = tokenizer.convert_tokens_to_ids
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": recipe.vocab_size,
            "hidden_size": recipe.hidden,
            "intermediate_size": recipe.intermediate,
            "num_hidden_layers": recipe.layers,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.kv_heads,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": list(recipe.mrope_section)},
            "bos_token_id": None,
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
        },
        vision_config={
            "depth": recipe.vision_layers,
            "embed_dim": recipe.vision_dim,
            "hidden_size": recipe.hidden,
            "num_heads": recipe.vision_heads,
            "mlp_ratio": recipe.vision_mlp_ratio,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "in_channels": 3,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    config.architectures = ["Qwen2VLForConditionalGeneration"]
    torch.manual_seed(recipe.seed)
    AttentionInterface.register("demo_training", _mix_heads)
    model = Qwen2VLForConditionalGeneration(config).to(torch.float32)
    model.model.language_model.config._attn_implementation = "demo_training"
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02 if "embed_tokens" in name else parameter[0].numel() ** -0.5)
    return model


class TrainingNetwork(nn.Module):  # type: ignore[misc]
    """Losses of a batch. `cells` is a head for training only: it names the items in each cell of a picture."""

    def __init__(self, model: Any, recipe: Recipe) -> None:
        super().__init__()
        self.model = model
        self.cells = nn.Linear(recipe.hidden, CELL_CLASSES)
        nn.init.constant_(self.cells.bias, -4.0)
        self.register_buffer("mean", torch.tensor(IMAGE_MEAN).repeat_interleave(PATCH * PATCH) * 255)
        self.register_buffer("std", torch.tensor(IMAGE_STD).repeat_interleave(PATCH * PATCH) * 255)

    def cell_loss(self, features: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy of the cell labels for each item there is, and how much of it is right."""
        labels = torch.from_numpy(batch.cell_labels)
        logits = self.cells(features).float()
        losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
        named, items = _found(logits, labels, 0, NAMES)
        tinted, _ = _found(logits, labels, NAMES, TINTS)
        ranked, _ = _found(logits, labels, NAMES + TINTS, RANKS)
        loss = losses.masked_fill(labels < 0, 0).sum() / items
        return loss, {"cells": float(loss.detach()), "named": named, "tinted": tinted, "ranked": ranked}

    def answer_loss(self, features: Tensor, words: Words) -> tuple[Tensor, Tensor]:
        """Weighted mean cross-entropy of the answers' tokens, and the fraction of tokens that are right."""
        language = self.model.model.language_model
        hidden = language.embed_tokens(torch.from_numpy(words.ids))
        rows, length, width = hidden.shape
        slots = torch.from_numpy(words.image_slots)
        told = slots >= 0
        flat = hidden.reshape(rows * length, width)
        hidden = flat.index_copy(0, slots[told], features[told].to(hidden.dtype))
        hidden = hidden.view(rows, length, width)
        rope = language.rotary_emb(hidden, torch.from_numpy(words.positions))
        mask = visible(torch.from_numpy(words.conversations), torch.from_numpy(words.branches))
        for layer in language.layers:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rope)
        weights = torch.from_numpy(words.weights).flatten()
        learnt = weights.nonzero().squeeze(1)
        targets, weights = torch.from_numpy(words.targets).flatten()[learnt], weights[learnt]
        logits = self.model.lm_head(language.norm(hidden.view(rows * length, width)[learnt])).float()
        right = (logits.argmax(-1) == targets).float().mean()
        losses = F.cross_entropy(logits, targets, reduction="none")
        return (losses * weights).sum() / weights.sum(), right

    def see(self, batch: Batch) -> Tensor:
        """The vision tower's output, one row a cell."""
        visual = self.model.model.visual
        pixels = (torch.from_numpy(batch.patches).float() - self.mean) / self.std
        weight = visual.patch_embed.proj.weight
        hidden = pixels @ weight.sum(2).flatten(1).T
        cos, sin = _rotations(visual, batch.groups)
        for block in visual.blocks:
            hidden = hidden + _attend(block.attn, block.norm1(hidden), batch.groups, cos, sin)
            hidden = hidden + block.mlp(block.norm2(hidden))
        return visual.merger(hidden)


def _found(logits: Tensor, labels: Tensor, first: int, count: int) -> tuple[float, float]:
    """Of `count` classes from `first`: the fraction of labels that have the highest logit, and how many there are."""
    logits, labels = logits[:, first : first + count], labels[:, first : first + count].clamp(min=0)
    items = max(1.0, float(labels.sum()))
    return float(labels.gather(1, logits.argmax(1, keepdim=True)).sum()) / items, items


def visible(conversations: Tensor, branches: Tensor) -> Tensor:
    """Added to scores: a token sees what precedes it in its own branch and in the part that branches share."""
    same = conversations[:, :, None] == conversations[:, None, :]
    along = (branches[:, None, :] == 0) | (branches[:, :, None] == branches[:, None, :])
    earlier = torch.ones(same.shape[-2:], dtype=torch.bool).tril()
    hidden = ~(same & along & earlier)
    return torch.zeros(hidden.shape, dtype=torch.bfloat16).masked_fill_(hidden, -30_000.0)[:, None]


def _rotations(visual: Any, groups: list[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
    """Cosines and sines for all patches, rows of (patches, 1, head dim)."""
    places = []
    for count, across, down in groups:
        cell = torch.cartesian_prod(*(torch.arange(n) for n in (down, across, MERGE, MERGE)))
        place = torch.stack([cell[:, 0] * MERGE + cell[:, 2], cell[:, 1] * MERGE + cell[:, 3]])
        places.append(place.repeat(1, count))
    if not places:
        places = [torch.zeros(2, 0, dtype=torch.long)]
    position = torch.cat(places, dim=1).T.float()
    angles = (position[..., None] * visual.rotary_pos_emb.inv_freq).flatten(1)
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos(), angles.sin()


def _mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as plain products: for these sizes on CPUs twice as fast as torch's flash kernel in bfloat16."""
    q = (q * q.shape[-1] ** -0.5).to(v.dtype)  # the rotation leaves q and k in float32
    with torch.autocast("cpu", enabled=False):
        scores = q @ k.to(v.dtype).transpose(-1, -2)
        if mask is not None:
            scores = scores + mask.to(scores.dtype)
        return torch.softmax(scores, -1) @ v


def _mix_heads(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any
) -> tuple[Tensor, None]:
    """`_mix` in the form of transformers' attention interface."""
    groups = module.num_key_value_groups
    key, value = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (key, value))
    return _mix(query, key, value, attention_mask).transpose(1, 2), None


def _attend(attn: Any, x: Tensor, groups: list[tuple[int, int, int]], cos: Tensor, sin: Tensor) -> Tensor:
    heads, width = attn.num_heads, attn.head_dim
    qkv = attn.qkv(x).view(-1, 3, heads, width)
    q, k, v = qkv.unbind(1)
    q, k = (t * cos + torch.cat([-t[..., width // 2 :], t[..., : width // 2]], -1) * sin for t in (q, k))
    out, at = [], 0
    for count, across, down in groups:
        patches = across * down * MERGE * MERGE
        q_, k_, v_ = (
            t[at : at + count * patches].view(count, patches, heads, width).transpose(1, 2) for t in (q, k, v)
        )
        mixed = _mix(q_, k_, v_, None)
        out.append(mixed.transpose(1, 2).reshape(count * patches, heads * width))
        at += count * patches
    return attn.proj(torch.cat(out)) if out else x
