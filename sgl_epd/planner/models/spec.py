"""The shape of a multimodal model: enough to count its weights, its caches and its arithmetic."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

from sgl_epd.errors import BadRequestError


class MediaSize(NamedTuple):
    """What one image or video becomes. Sizes of several items add up (`+`)."""

    sequences: int
    """Sequences in the vision transformer that do not attend to each other: tiles, slices, frames, or one."""
    patches: int
    """Tokens in the vision transformer, all sequences together: the unit of encode work."""
    patches_squared: int
    """Sum over the sequences of their squared lengths: the work of full attention."""
    embeddings: int
    """Rows that the encoder delivers."""
    prompt_tokens: int
    """Positions in the prompt, with the markers around the embeddings."""
    pixels: int
    """Pixels after resizing, all sequences together."""

    def __add__(self, other: tuple[object, ...]) -> MediaSize:
        if not isinstance(other, MediaSize):
            return NotImplemented
        return MediaSize(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, count: int) -> MediaSize:
        """So many of them."""
        return MediaSize(*(field * count for field in self))


NO_MEDIA = MediaSize(0, 0, 0, 0, 0, 0)


class MediaRules(Protocol):
    """A model's own rules for resizing and tiling. Raises `BadRequestError` for what its processor refuses."""

    def image(self, width: int, height: int) -> MediaSize: ...

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        """`frames` are those that are left after sampling."""
        ...

    def audio(self, seconds: float) -> MediaSize: ...


class VisualMedia:
    """The part of the rules that models without ears have in common."""

    def audio(self, seconds: float) -> MediaSize:
        raise BadRequestError("this model takes no audio")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageSpec:
    """A decoder-only transformer with gated MLPs, dense or with experts."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    extra_embeddings: int = 0
    """Rows of the input embedding beyond the vocabulary."""
    tied: bool = False
    """Input and output embedding are the same weights."""
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    """Of a model with experts: layers that have an ordinary MLP instead."""
    cross_layers: int = 0
    """Layers that attend to the embeddings in place of the text (Llama 3.2)."""

    @property
    def self_layers(self) -> int:
        return self.layers - self.cross_layers

    @property
    def attention_params(self) -> int:
        """Of one layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = queries + 2 * keys if self.qkv_bias else 0
        norm = 2 * self.head_dim if self.qk_norm else 0
        return self.hidden * (2 * queries + 2 * keys) + bias + norm

    def _mlp_params(self, experts: int) -> int:
        """All MLPs together, with so many of the experts of each layer."""
        dense = self.dense_layers if self.experts else self.layers
        sparse = self.layers - dense
        expert = 3 * self.hidden * self.expert_intermediate
        return dense * 3 * self.hidden * self.intermediate + sparse * (experts * expert + self.hidden * self.experts)

    @property
    def layer_params(self) -> int:
        """All layers with their norms, without embeddings."""
        cross = self.cross_layers * ((0 if self.qk_norm else 2 * self.head_dim) + 2)
        norms = self.layers * 2 * self.hidden + self.hidden
        return self.layers * self.attention_params + self._mlp_params(self.experts) + norms + cross

    @property
    def params(self) -> int:
        output = 0 if self.tied else self.vocab * self.hidden
        return self.layer_params + (self.vocab + self.extra_embeddings) * self.hidden + output

    @property
    def active_params(self) -> int:
        """Those of the layers that one token is multiplied with."""
        return self.layers * self.attention_params + self._mlp_params(self.experts_per_token)

    def kv_bytes_per_token(self, dtype_bytes: int = 2, tp: int = 1) -> int:
        """Of one text token, on one device. With more devices than KV heads each still holds one head."""
        return 2 * self.self_layers * max(1, self.kv_heads // tp) * self.head_dim * dtype_bytes

    def cross_kv_bytes_per_row(self, dtype_bytes: int = 2, tp: int = 1) -> int:
        """Of one embedding row that cross layers attend to."""
        return 2 * self.cross_layers * max(1, self.kv_heads // tp) * self.head_dim * dtype_bytes

    def attention_flops(self, pairs: float) -> float:
        """Of so many (query, key) pairs, through all layers: scores and weighted sum, two operations each."""
        return 4.0 * self.heads * self.head_dim * self.self_layers * pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionSpec:
    """A vision (or audio) transformer and what stands between it and the language model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    gated: bool
    """Its MLPs have a gate, hence two tensors of the intermediate size."""
    layer_params: int
    """All transformer layers."""
    tower_params: int
    """The layers with embeddings and norms."""
    projector_params: int
    """Merger, resampler or projector, on the encoder's side."""
    embedding_dim: int
    """Elements of one row that goes to prefill."""
    windowed_layers: int = 0
    """Layers whose attention stays inside windows."""
    window: int = 0
    """Patches in such a window."""

    @property
    def params(self) -> int:
        return self.tower_params + self.projector_params

    def attention_flops(self, size: MediaSize) -> float:
        """Scores and weighted sums of all layers for media of this size."""
        full = (self.layers - self.windowed_layers) * size.patches_squared
        windows = self.windowed_layers * size.patches * self.window
        return 4.0 * self.hidden * (full + windows)

    def projector_ratio(self, size: MediaSize) -> float:
        """Rows per patch: how often the projector runs for each run of the tower."""
        return size.embeddings / size.patches if size.patches else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as the planner sees it. Weights and caches are of `dtype_bytes` an element."""

    name: str
    family: str
    language: LanguageSpec
    vision: VisionSpec
    media: MediaRules
    max_context: int
    """Longest prompt and answer together."""
    dtype_bytes: int = 2

    @property
    def encoder_bytes(self) -> int:
        return self.vision.params * self.dtype_bytes

    @property
    def language_bytes(self) -> int:
        return self.language.params * self.dtype_bytes

    @property
    def row_bytes(self) -> int:
        """One embedding row."""
        return self.vision.embedding_dim * self.dtype_bytes

    def kv_bytes(self, prompt_tokens: int, embeddings: int = 0, tp: int = 1) -> int:
        """KV cache of one request on one device; `embeddings` count only where cross layers look at them."""
        language = self.language
        return prompt_tokens * language.kv_bytes_per_token(self.dtype_bytes, tp) + (
            embeddings * language.cross_kv_bytes_per_row(self.dtype_bytes, tp)
        )
