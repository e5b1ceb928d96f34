"""What fits into a device: weights, embedding cache, activations, and KV cache out of the rest.

Everything but two figures follows from the config. Those two are `reserved_bytes`, what driver and libraries take, and
`allocator_factor`, by which memory in use exceeds the tensors that must be alive at once. docs/memory-model.md derives
the formulas and shows them against published measurements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum

from sgl_epd.errors import ConfigError
from sgl_epd.planner.devices import Device
from sgl_epd.planner.models.spec import NO_MEDIA, MediaSize, ModelSpec
from sgl_epd.planner.stages import Stage, Stages, letters

GIB = 2**30
_MOST = 2**24
"""Beyond so many the question has no answer in practice."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """What depends on the engine and on its flags."""

    reserved_bytes: int = 2 * GIB
    """CUDA context, workspaces of libraries, CUDA graphs."""
    allocator_factor: float = 1.4
    """Of activations: blocks that the allocator cannot use again at once, temporaries of kernels."""
    mm_cache_bytes: int = 2 * GIB
    """For embeddings on an encode or prefill worker (`--mm-cache-size-mb`)."""
    eager_vision_attention: bool = False
    """The vision transformer writes its attention scores out; SGLang's kernels do not."""


class Bound(StrEnum):
    """What ends a limit."""

    MEMORY = "memory"
    CONTEXT = "context"
    MM_CACHE = "embedding cache"


@dataclasses.dataclass(frozen=True)
class Limit:
    """A largest number, and why it is not larger. 0: not even one."""

    value: int
    bound: Bound


@dataclasses.dataclass(frozen=True)
class RequestSize:
    """One request: its text, its media together, and how much it will be answered."""

    text_tokens: int
    media: MediaSize = NO_MEDIA
    output_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.text_tokens + self.media.prompt_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclasses.dataclass(frozen=True)
class WorkerMemory:
    """One worker: a model's stages on `tp` devices. All figures are bytes on one of those devices."""

    model: ModelSpec
    device: Device
    stages: Stages
    settings: MemorySettings = MemorySettings()
    tp: int = 1

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("a worker needs at least one stage")
        if self.tp < 1 or self.model.language.heads % self.tp:
            heads = self.model.language.heads
            raise ConfigError(f"{self.model.name} has {heads} heads: they cannot be shared by {self.tp}")

    @property
    def weight_bytes(self) -> int:
        """Only of the stages that run here. The vision tower is split like the rest."""
        encoder = self.model.encoder_bytes if Stage.ENCODE in self.stages else 0
        language = self.model.language_bytes if self.stages & {Stage.PREFILL, Stage.DECODE} else 0
        return (encoder + language) // self.tp

    @property
    def mm_cache_bytes(self) -> int:
        return self.settings.mm_cache_bytes if self.stages & {Stage.ENCODE, Stage.PREFILL} else 0

    @property
    def free_bytes(self) -> int:
        """For activations and KV cache; below 0 if not even the weights fit."""
        return self.device.memory_bytes - self.settings.reserved_bytes - self.weight_bytes - self.mm_cache_bytes

    @property
    def fits(self) -> bool:
        return self.free_bytes > 0

    @property
    def has_kv(self) -> bool:
        return bool(self.stages & {Stage.PREFILL, Stage.DECODE})

    def encode_bytes(self, media: MediaSize) -> float:
        """Activations of one forward of the vision tower over `media`."""
        vision, width = self.model.vision, self.model.dtype_bytes
        inner = (3 if vision.gated else 2) * vision.intermediate / self.tp
        states = media.patches * (3 * vision.hidden + inner) * width
        pixels = 3 * media.pixels * (width + 4)
        rows = media.embeddings * self.model.row_bytes
        scores = 0.0
        if self.settings.eager_vision_attention:
            # Scores in the model's precision, their softmax in single precision, and that back in the model's.
            scores = vision.heads / self.tp * media.patches_squared * (2 * width + 4)
        return self.settings.allocator_factor * (states + pixels + rows) + scores

    def prefill_bytes(self, tokens: int) -> float:
        """Activations of one prefill forward over so many tokens: they peak inside an MLP."""
        language = self.model.language
        dense = language.intermediate if language.dense_layers or not language.experts else 0
        inner = max(dense, language.experts_per_token * language.expert_intermediate)
        states = 5 * language.hidden + 3 * inner / self.tp
        return self.settings.allocator_factor * tokens * states * self.model.dtype_bytes

    def activation_bytes(self, request: RequestSize, batch: int = 1) -> float:
        """Peak of `batch` such requests in one step. Encode and prefill follow each other, so the larger one counts."""
        encode = self.encode_bytes(request.media.times(batch)) if Stage.ENCODE in self.stages else 0.0
        tokens = batch * request.prompt_tokens if Stage.PREFILL in self.stages else batch
        prefill = self.prefill_bytes(tokens) if self.has_kv else 0.0
        return max(encode, prefill)

    def kv_bytes(self, request: RequestSize) -> int:
        """KV cache of one request when it ends here."""
        tokens = request.total_tokens if Stage.DECODE in self.stages else request.prompt_tokens
        return self.model.kv_bytes(tokens, request.media.embeddings, self.tp)

    def max_batch(self, request: RequestSize, kv_share: float | None = None) -> Limit:
        """Most such requests in one step.

        With `kv_share` that share of the free memory is the KV cache and the rest is for activations; without it
        whatever division allows the most. A worker without KV cache has all free memory for activations.
        """
        if self._too_long(request):
            return Limit(0, Bound.CONTEXT)
        return Limit(_largest(lambda count: self._holds(request, count, kv_share)), Bound.MEMORY)

    def max_images(self, image: MediaSize, text_tokens: int = 0, kv_share: float | None = None) -> Limit:
        """Most images of this size in one request that is alone in its step."""

        def request(count: int) -> RequestSize:
            return RequestSize(text_tokens, image.times(count))

        by_memory = _largest(lambda count: self._holds(request(count), 1, kv_share))
        if not self.has_kv:
            return Limit(by_memory, Bound.MEMORY)
        by_context = max(0, self.model.max_context - text_tokens) // max(1, image.prompt_tokens)
        return Limit(by_context, Bound.CONTEXT) if by_context < by_memory else Limit(by_memory, Bound.MEMORY)

    def max_kv_share(self, request: RequestSize) -> float:
        """Largest share of the free memory that can be KV cache while this request still runs; 0 if it cannot.

        Raises `ConfigError` if the request is longer than the model's context.
        """
        if self._too_long(request):
            raise ConfigError(f"{request.total_tokens} tokens are beyond the context of {self.model.name}")
        return max(0.0, 1.0 - self.activation_bytes(request) / self.free_bytes) if self.fits else 0.0

    def kv_tokens(self, step: RequestSize, batch: int = 1) -> int:
        """Text tokens that the KV cache holds beside the activations of such steps; 0 if they leave nothing."""
        each = self.model.language.kv_bytes_per_token(self.model.dtype_bytes, self.tp)
        return max(0, int(self.free_bytes - self.activation_bytes(step, batch)) // each)

    def _too_long(self, request: RequestSize) -> bool:
        return self.has_kv and request.total_tokens > self.model.max_context

    def _holds(self, request: RequestSize, count: int, kv_share: float | None) -> bool:
        activations, kv = self.activation_bytes(request, count), self.kv_bytes(request) * count if self.has_kv else 0
        if kv_share is None or not self.has_kv:
            return activations + kv <= self.free_bytes
        return activations <= (1 - kv_share) * self.free_bytes and kv <= kv_share * self.free_bytes


def _largest(holds: Callable[[int], bool]) -> int:
    """The largest count for which a condition holds that more only ever breaks; 0 if not even 1."""
    high = 1
    while high < _MOST and holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def explain(worker: WorkerMemory) -> str:
    """One line: what stands in a worker's memory, in GiB."""
    parts = {
        "weights": worker.weight_bytes,
        "embeddings": worker.mm_cache_bytes,
        "reserved": worker.settings.reserved_bytes,
        "free": worker.free_bytes,
    }
    return f"{letters(worker.stages)}: " + ", ".join(f"{name} {size / GIB:.1f} GiB" for name, size in parts.items())
