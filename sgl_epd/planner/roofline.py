"""A cost model from data sheets, for devices on which nobody has measured. It is marked as such.

Each operation takes the longer of its arithmetic and its memory traffic; `Efficiency` says how much of the data
sheet's figures engines reach. docs/cost-models.md says where those shares come from.
"""

from __future__ import annotations

import dataclasses

from sgl_epd.errors import BadRequestError, ConfigError
from sgl_epd.planner.cost_model import (
    CostModel,
    DecodeCost,
    EncodeCost,
    PrefillCost,
    PreprocessCost,
    Provenance,
    StageName,
    TransferCost,
    load_cost_model,
    shipped_cost_models,
)
from sgl_epd.planner.devices import Device, load_device
from sgl_epd.planner.models import load_model
from sgl_epd.planner.models.spec import MediaSize, ModelSpec

_TYPICAL_CLIP_S = 10.0
_TYPICAL_SIDE = 1024
"""Of the image by which the projector's share of the encode work is counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Shares of the data sheet's figures, and constants (seconds) that no data sheet has."""

    prefill: float = 0.55
    encode: float = 0.40
    memory: float = 0.80
    link: float = 0.60
    encode_step_s: float = 0.005
    prefill_step_s: float = 0.005
    decode_step_s: float = 0.002
    """With CUDA graphs."""
    decode_sequence_s: float = 2e-5
    """Sampling and book-keeping for each sequence."""
    reduce_latency_s: float = 1.0e-5
    """One all-reduce of tensor parallelism, without its bytes."""
    preprocess_item_s: float = 0.002
    preprocess_megapixel_s: float = 0.020
    transfer_latency_s: float = 0.001
    hop_s: float = 0.005


def roofline(
    model: ModelSpec, device: Device, *, tp: int = 1, efficiency: Efficiency = Efficiency(), created: str
) -> CostModel:
    """Any model on any device. All stages carry the provenance `roofline` or `assumed`."""
    source = f"{device.source}; shares of it: {_shares(efficiency)}"
    computed = Provenance(kind="roofline", source=source)
    assumed = Provenance(kind="assumed", source=_shares(efficiency))
    transfer = TransferCost(
        latency_s=efficiency.transfer_latency_s, byte_s=1 / (device.link_bandwidth * efficiency.link)
    )
    stages: dict[StageName, Provenance] = {
        "preprocess": assumed,
        "encode": computed,
        "prefill": computed,
        "decode": computed,
        "embedding_transfer": computed,
        "kv_transfer": computed,
        "hop": assumed,
    }
    return CostModel(
        model=model.name,
        device=device.name,
        tp=tp,
        preprocess=PreprocessCost(item_s=efficiency.preprocess_item_s, megapixel_s=efficiency.preprocess_megapixel_s),
        encode=encode_roofline(model, device, tp, efficiency),
        prefill=prefill_roofline(model, device, tp, efficiency),
        decode=decode_roofline(model, device, tp, efficiency),
        embedding_transfer=transfer,
        kv_transfer=transfer,
        hop_s=efficiency.hop_s,
        provenance=stages,
        created=created,
    )


def resolve_cost_model(name: str) -> CostModel:
    """A JSON file, a shipped `MODEL@DEVICE`, or the roofline of any known model and device (`@DEVICE@TP` for more).

    Raises `ConfigError`. Which one it was stands in the provenance.
    """
    if name.endswith(".json") or name.lower() in shipped_cost_models():
        return load_cost_model(name)
    model, _, place = name.partition("@")
    device, _, tp = place.partition("@")
    if not device or not (tp or "1").isdecimal():
        raise ConfigError(f"{name!r} is no cost model; give a JSON file, or for example qwen2.5-vl-7b@h100-80g")
    return roofline(load_model(model), load_device(device), tp=int(tp or 1), created="computed when asked for")


def _typical_media(model: ModelSpec) -> MediaSize:
    """A picture, or a clip for a model that only hears."""
    try:
        return model.media.image(_TYPICAL_SIDE, _TYPICAL_SIDE)
    except BadRequestError:
        return model.media.audio(_TYPICAL_CLIP_S)


def encode_flops_per_patch(model: ModelSpec) -> float:
    """Multiplications with weights, and attention inside windows; full attention goes with the squares."""
    vision = model.vision
    ratio = vision.projector_ratio(_typical_media(model))
    windows = 4.0 * vision.hidden * vision.windowed_layers * vision.window
    return 2.0 * (vision.layer_params + ratio * vision.projector_params) + windows


def encode_roofline(model: ModelSpec, device: Device, tp: int, efficiency: Efficiency) -> EncodeCost:
    vision = model.vision
    rate = tp * device.flops * efficiency.encode
    exchange = _reduce_s(vision.layers, vision.hidden, model.dtype_bytes, device, tp, efficiency)
    return EncodeCost(
        step_s=efficiency.encode_step_s + _latency_s(vision.layers, tp, efficiency),
        patch_s=encode_flops_per_patch(model) / rate + exchange,
        patch_squared_s=4.0 * vision.hidden * (vision.layers - vision.windowed_layers) / rate,
        floor_s=model.encoder_bytes / (tp * device.memory_bandwidth * efficiency.memory),
    )


def prefill_roofline(model: ModelSpec, device: Device, tp: int, efficiency: Efficiency) -> PrefillCost:
    language = model.language
    rate = tp * device.flops * efficiency.prefill
    exchange = _reduce_s(language.layers, language.hidden, model.dtype_bytes, device, tp, efficiency)
    return PrefillCost(
        step_s=efficiency.prefill_step_s + _latency_s(language.layers, tp, efficiency),
        token_s=2.0 * language.active_params / rate + exchange,
        pair_s=language.attention_flops(1.0) / rate,
        floor_s=model.language_bytes / (tp * device.memory_bandwidth * efficiency.memory),
    )


def decode_roofline(model: ModelSpec, device: Device, tp: int, efficiency: Efficiency) -> DecodeCost:
    """The floor reads all weights: a batch of a few sequences already reaches most experts of a sparse model."""
    language = model.language
    bandwidth = device.memory_bandwidth * efficiency.memory
    exchange = _reduce_s(language.layers, language.hidden, model.dtype_bytes, device, tp, efficiency)
    flops = 2.0 * (language.active_params + language.vocab * language.hidden)
    compute = flops / (tp * device.flops * efficiency.prefill)
    return DecodeCost(
        step_s=efficiency.decode_step_s + _latency_s(language.layers, tp, efficiency),
        context_s=language.kv_bytes_per_token(model.dtype_bytes, tp) / bandwidth,
        sequence_s=compute + exchange + efficiency.decode_sequence_s,
        floor_s=model.language_bytes / (tp * bandwidth),
    )


def _reduce_s(layers: int, hidden: int, dtype_bytes: int, device: Device, tp: int, efficiency: Efficiency) -> float:
    """Two ring all-reduces a layer, for one token."""
    sent = 2.0 * layers * 2.0 * (tp - 1) / tp * hidden * dtype_bytes
    return sent / (device.link_bandwidth * efficiency.link)


def _latency_s(layers: int, tp: int, efficiency: Efficiency) -> float:
    return 2.0 * layers * efficiency.reduce_latency_s if tp > 1 else 0.0


def _shares(efficiency: Efficiency) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in dataclasses.asdict(efficiency).items())
