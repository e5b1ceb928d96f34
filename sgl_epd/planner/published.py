"""Cost models out of what the EPD paper printed: `python -m sgl_epd.planner.published`.

Published are times to the first token of whole requests (`data/paper_latency.json`). Each is a sum of known amounts
times four unknown figures: a constant, seconds per distinct megapixel, and the arithmetic rates of encode and prefill.
MiniCPM-V has enough of them for least squares; for the InternVL models the first two and the prefill rate are taken
over and the encode rate alone is fitted. docs/cost-models.md shows how well that explains the rest.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from sgl_epd.errors import ConfigError
from sgl_epd.planner import datafile
from sgl_epd.planner.cost_model import (
    CostModel,
    DecodeCost,
    EncodeCost,
    PrefillCost,
    PreprocessCost,
    Provenance,
    TransferCost,
    attended_pairs,
)
from sgl_epd.planner.devices import load_device
from sgl_epd.planner.models import ModelSpec, load_model
from sgl_epd.planner.roofline import encode_flops_per_patch

ENGINE = "vllm-0.6.1"
"""Under the paper's system: eager mode, without CUDA graphs or chunked prefill."""
MODELS = ("minicpm-v-2.6", "internvl2-8b", "internvl2-26b")
DEVICES = ("a100-80g", "a800-80g")
_TEXT_TOKENS = 22
_READ_BANDWIDTH = 0.8
"""Share of the memory bandwidth at which a decode step reads the weights."""
_CREATED = "sgl_epd.planner.published"


class Anchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published time to the first token."""

    where: str
    """Table or figure. Readings of figures are approximate."""
    model: str
    kind: Literal["image", "frame"]
    width: int
    height: int
    items: int
    """Of the request."""
    longest_share: int
    """Items on the encoder that has most of them: all without intra-request parallelism."""
    distinct: int
    """Items with pixels of their own on that encoder; the paper's client sends one image many times."""
    seconds: float


class DecodeAnchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published time per output token, with the batch that the run had on average."""

    where: str
    batch: float
    seconds: float


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data/paper_latency.json`."""

    source: str
    first_token: list[Anchor]
    decode: list[DecodeAnchor]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The four unknowns. `encode` and `prefill` are seconds for each floating-point operation."""

    hop_s: Annotated[float, msgspec.Meta(ge=0)]
    megapixel_s: float
    encode: float
    prefill: float


@dataclasses.dataclass(frozen=True)
class Amounts:
    """What an anchor's time is made of: multiplied with `Rates` and added up."""

    megapixels: float
    encode_flops: float
    prefill_flops: float

    def seconds(self, rates: Rates) -> float:
        work = self.encode_flops * rates.encode + self.prefill_flops * rates.prefill
        return rates.hop_s + rates.megapixel_s * self.megapixels + work


def amounts(anchor: Anchor, model: ModelSpec) -> Amounts:
    media = model.media
    one = media.image(anchor.width, anchor.height)
    if anchor.kind == "frame":
        one = media.video(anchor.width, anchor.height, 1)
    share, tokens = one.times(anchor.longest_share), _TEXT_TOKENS + anchor.items * one.prompt_tokens
    attention = 4.0 * model.vision.hidden * model.vision.layers * share.patches_squared
    return Amounts(
        megapixels=anchor.distinct * anchor.width * anchor.height / 1e6,
        encode_flops=share.patches * encode_flops_per_patch(model) + attention,
        prefill_flops=2.0 * model.language.active_params * tokens
        + model.language.attention_flops(attended_pairs(tokens, 0)),
    )


def solve(anchors: Sequence[Anchor], model: ModelSpec) -> Rates:
    """All four, by relative least squares without negative values. Raises `ConfigError` without scipy."""
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise ConfigError("deriving cost models needs scipy: pip install 'sgl-epd[planner]'") from error
    rows = [amounts(anchor, model) for anchor in anchors]
    table = np.array([[1.0, row.megapixels, row.encode_flops, row.prefill_flops] for row in rows])
    relative = table / np.array([[anchor.seconds] for anchor in anchors])
    scale = np.linalg.norm(relative, axis=0)
    found = nnls(relative / scale, np.ones(len(rows)))[0] / scale
    return Rates(**dict(zip(Rates.__struct_fields__, map(float, found), strict=True)))


def solve_encode(anchors: Sequence[Anchor], model: ModelSpec, known: Rates) -> Rates:
    """Only the encode rate: what two anchors of different shares differ by, so that the rest cancels out."""
    most, least = max(anchors, key=lambda a: a.longest_share), min(anchors, key=lambda a: a.longest_share)
    flops = amounts(most, model).encode_flops - amounts(least, model).encode_flops
    return msgspec.structs.replace(known, encode=(most.seconds - least.seconds) / flops)


def derive(published: Published, name: str) -> Rates:
    """The rates of one model of the paper."""
    of_model = {model: [a for a in published.first_token if a.model == model] for model in MODELS}
    common = solve(of_model[MODELS[0]], load_model(MODELS[0]))
    return common if name == MODELS[0] else solve_encode(of_model[name], load_model(name), common)


def decode_cost(published: Published, model: ModelSpec, memory_bandwidth: float) -> DecodeCost:
    """A line through the paper's times per token, shifted to other models by their layers and weights.

    Launching a layer's kernels one by one costs a constant (eager mode, no CUDA graphs); what remains for each sequence
    is mostly the engine's own work in Python.
    """
    reference = load_model(MODELS[0])
    bandwidth = memory_bandwidth * _READ_BANDWIDTH
    batches = np.array([[1.0, anchor.batch] for anchor in published.decode])
    seconds = np.array([anchor.seconds for anchor in published.decode])
    (step, sequence), *_ = np.linalg.lstsq(batches / seconds[:, None], np.ones(len(seconds)), rcond=None)
    launches = (step - reference.language_bytes / bandwidth) / reference.language.layers
    return DecodeCost(
        step_s=float(launches * model.language.layers + model.language_bytes / bandwidth),
        sequence_s=float(sequence),
        context_s=model.language.kv_bytes_per_token(model.dtype_bytes) / bandwidth,
    )


def cost_model(published: Published, name: str, device_name: str) -> CostModel:
    """One of the shipped cost models."""
    model, device, rates = load_model(name), load_device(device_name), derive(published, name)
    vision, language = model.vision, model.language
    source = f"{published.source}, by sgl_epd.planner.published (docs/cost-models.md)"
    fitted = Provenance(kind="published", source=source)
    assumed = Provenance(kind="assumed", source="half of the link, and 5 ms for thousands of small copies")
    transfer = TransferCost(latency_s=0.005, byte_s=2 / device.link_bandwidth)
    return CostModel(
        model=model.name,
        device=device.name,
        preprocess=PreprocessCost(megapixel_s=rates.megapixel_s),
        encode=EncodeCost(
            patch_s=encode_flops_per_patch(model) * rates.encode,
            patch_squared_s=4.0 * vision.hidden * vision.layers * rates.encode,
        ),
        prefill=PrefillCost(
            token_s=2.0 * language.active_params * rates.prefill, pair_s=language.attention_flops(1.0) * rates.prefill
        ),
        decode=decode_cost(published, model, device.memory_bandwidth),
        embedding_transfer=transfer,
        kv_transfer=transfer,
        hop_s=rates.hop_s,
        provenance={
            "preprocess": fitted,
            "encode": fitted,
            "prefill": fitted,
            "decode": fitted,
            "embedding_transfer": assumed,
            "kv_transfer": assumed,
            "hop": fitted,
        },
        created=_CREATED,
    )


def read_published() -> Published:
    return datafile.read(datafile.shipped("paper_latency.json"), Published)


def residuals(published: Published) -> Table:
    """Each anchor beside what its model gives for it."""
    table = Table(title="Time to first token, s")
    for column in ("where", "model", "items", "on one encoder", "published", "derived", "difference"):
        table.add_column(column)
    for anchor in published.first_token:
        seconds = amounts(anchor, load_model(anchor.model)).seconds(derive(published, anchor.model))
        shown = [anchor.where, anchor.model, str(anchor.items), str(anchor.longest_share), f"{anchor.seconds:.2f}"]
        table.add_row(*shown, f"{seconds:.2f}", f"{seconds / anchor.seconds - 1:+.0%}")
    return table


def main() -> int:
    published = read_published()
    console = Console(width=max(120, Console().width))
    console.print(residuals(published))
    for name in MODELS:
        rates = derive(published, name)
        speeds = f"encode {1e-12 / rates.encode:.0f} TFLOP/s, prefill {1e-12 / rates.prefill:.0f} TFLOP/s"
        console.print(f"{name}: hop {rates.hop_s:.3f} s, {rates.megapixel_s:.4f} s per megapixel, {speeds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
