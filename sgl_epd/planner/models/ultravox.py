"""Ultravox: Whisper's encoder over audio of its own length, eight frames stacked to a token."""

from __future__ import annotations

import dataclasses
import math

from sgl_epd.errors import BadRequestError
from sgl_epd.planner.models.fields import Json, dtype_bytes, integer, section
from sgl_epd.planner.models.language import language_of, max_context, tied_embeddings
from sgl_epd.planner.models.spec import MediaSize, ModelSpec, VisionSpec

_FRAMES_PER_S = 50
"""Of the encoder: a spectrum every 10 ms, halved by its second convolution."""


@dataclasses.dataclass(frozen=True)
class UltravoxMedia:
    """As in the model's own processor: clips are not padded to Whisper's 30 s."""

    stack: int
    bins: int
    max_frames: int

    def audio(self, seconds: float) -> MediaSize:
        frames = max(1, math.ceil(seconds * _FRAMES_PER_S))
        if seconds <= 0 or frames > self.max_frames:
            raise BadRequestError(
                f"a clip of {seconds} s; this model takes up to {self.max_frames / _FRAMES_PER_S:g} s"
            )
        rows = math.ceil(frames / self.stack)
        # "Pixels" of audio: one channel of mel bins, twice as many spectra as frames.
        return MediaSize(1, frames, frames * frames, rows, rows, 2 * frames * self.bins // 3)

    def image(self, width: int, height: int) -> MediaSize:
        raise BadRequestError("this model takes no images")

    def video(self, width: int, height: int, frames: int) -> MediaSize:
        raise BadRequestError("this model takes no videos")


def read_ultravox(name: str, config: Json, processor: Json) -> ModelSpec:
    """Raises `ConfigError`."""
    text, audio = section(config, "text_config"), section(config, "audio_config")
    language = language_of(text, tied=tied_embeddings(config, text))
    stack = integer(config, "stack_factor", default=8)
    return ModelSpec(
        name=name,
        family="ultravox",
        language=language,
        vision=_tower(audio, stack, integer(config, "hidden_size"), language.hidden),
        media=UltravoxMedia(stack, integer(audio, "num_mel_bins"), integer(audio, "max_source_positions")),
        max_context=max_context(text),
        dtype_bytes=dtype_bytes(config, text),
    )


def _tower(audio: Json, stack: int, inner: int, out: int) -> VisionSpec:
    hidden, layers = integer(audio, "d_model"), integer(audio, "encoder_layers")
    ffn = integer(audio, "encoder_ffn_dim")
    # Whisper's keys have no bias.
    layer = 4 * hidden * hidden + 3 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    convolutions = 3 * integer(audio, "num_mel_bins") * hidden + 3 * hidden * hidden + 2 * hidden
    positions = integer(audio, "max_source_positions") * hidden
    stacked = stack * hidden
    return VisionSpec(
        hidden=hidden,
        intermediate=ffn,
        layers=layers,
        heads=integer(audio, "encoder_attention_heads"),
        gated=False,
        layer_params=layers * layer,
        tower_params=layers * layer + convolutions + positions + 2 * hidden,
        # A gate halves the inner size.
        projector_params=stacked + stacked * inner + inner // 2 * out + out,
        embedding_dim=out,
    )
