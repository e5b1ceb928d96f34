"""How long a stage takes: a handful of coefficients for each, so that a reviewer can check them by hand.

    preprocess = a * items + b * megapixels
    encode     = a + b * patches + c * patches^2            (squares summed over sequences that attend to themselves)
    prefill    = a + b * new + c * new * (past + new / 2)
    decode     = a + b * context + c * sequences
    transfer   = latency + bytes / bandwidth

All in seconds. Coefficients are fitted to measured steps (`fit`), derived from published figures (`published`), or
computed from data sheets (`roofline`); each stage says which. Only the last kind has floors.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sgl_epd.errors import ConfigError
from sgl_epd.planner import datafile

Coefficient = Annotated[float, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class PreprocessCost(_Part, frozen=True, kw_only=True):
    """On a CPU core: decode, resize, normalise."""

    item_s: Coefficient = 0.0
    megapixel_s: Coefficient = 0.0
    """For each million pixels of the image as the client sent it."""

    def seconds(self, items: float, megapixels: float) -> float:
        return self.item_s * items + self.megapixel_s * megapixels


class EncodeCost(_Part, frozen=True, kw_only=True):
    """One forward of the vision tower with projector, over all images in the batch."""

    step_s: Coefficient = 0.0
    patch_s: Coefficient = 0.0
    patch_squared_s: Coefficient = 0.0
    floor_s: Coefficient = 0.0
    """Reading the weights once: what the linear part takes at least."""

    def seconds(self, patches: float, patches_squared: float) -> float:
        return self.step_s + max(self.floor_s, self.patch_s * patches) + self.patch_squared_s * patches_squared


class PrefillCost(_Part, frozen=True, kw_only=True):
    """One prefill forward, over all requests and chunks in the batch."""

    step_s: Coefficient = 0.0
    token_s: Coefficient = 0.0
    """For each new token."""
    pair_s: Coefficient = 0.0
    """For each pair of a new token and one that it attends to."""
    floor_s: Coefficient = 0.0

    def seconds(self, new: float, pairs: float) -> float:
        """`pairs` is the sum of `attended_pairs` over the batch."""
        return self.step_s + max(self.floor_s, self.token_s * new) + self.pair_s * pairs


class DecodeCost(_Part, frozen=True, kw_only=True):
    """One decode step: one token for each sequence in the batch."""

    step_s: Coefficient = 0.0
    context_s: Coefficient = 0.0
    """For each token in the batch's KV caches."""
    sequence_s: Coefficient = 0.0
    floor_s: Coefficient = 0.0

    def seconds(self, context: float, sequences: float) -> float:
        return self.step_s + max(self.floor_s, self.sequence_s * sequences) + self.context_s * context

    def many(self, steps: int, context: float, sequences: float) -> float:
        """So many steps of one batch, whose contexts grow by a token each time. `context` is that of the first."""
        return steps * self.seconds(context, sequences) + self.context_s * sequences * steps * (steps - 1) / 2

    def steps_within(self, seconds: float, context: float, sequences: float) -> int:
        """How many of these steps are over after so long."""
        first, growth = self.seconds(context, sequences), self.context_s * sequences / 2
        # The root of many(n) = seconds; of the two equal forms this one is exact where growth is small.
        half = (first - growth) / 2
        steps = int(seconds / (half + math.sqrt(half * half + growth * seconds)))
        # Sums are rounded: settle which side of the end of a step this is.
        while steps and self.many(steps, context, sequences) > seconds:
            steps -= 1
        while self.many(steps + 1, context, sequences) <= seconds:
            steps += 1
        return steps


class TransferCost(_Part, frozen=True, kw_only=True):
    """One message over a link that it has for itself."""

    latency_s: Coefficient = 0.0
    byte_s: Coefficient = 0.0
    """The reverse of the bandwidth."""

    def seconds(self, nbytes: float) -> float:
        return self.latency_s + self.byte_s * nbytes


class HeldOut(_Part, frozen=True, kw_only=True):
    """Relative errors of predictions for samples that the fit had not seen; the coefficients then use all samples."""

    samples: int
    mean_abs: float
    max_abs: float
    bias: float
    """Mean of (predicted - measured) / measured."""


class Provenance(_Part, frozen=True, kw_only=True):
    """Where one stage's coefficients come from."""

    kind: Literal["measured", "published", "roofline", "assumed"]
    source: str
    held_out: HeldOut | None = None


StageName = Literal["preprocess", "encode", "prefill", "decode", "embedding_transfer", "kv_transfer", "hop"]


class CostModel(_Part, frozen=True, kw_only=True):
    """One model on one kind of device (`tp` of them for one worker)."""

    model: str
    device: str
    tp: Annotated[int, msgspec.Meta(ge=1)] = 1
    preprocess: PreprocessCost
    encode: EncodeCost
    prefill: PrefillCost
    decode: DecodeCost
    embedding_transfer: TransferCost
    kv_transfer: TransferCost
    hop_s: Coefficient
    """Once for each request: HTTP, router, tokenizer, scheduler's loop."""
    provenance: dict[StageName, Provenance]
    created: str
    """When and by what: ISO date, command, commit."""

    @property
    def measured(self) -> bool:
        """False as soon as one stage was not measured on this device."""
        return all(origin.kind == "measured" for origin in self.provenance.values())

    def warnings(self) -> list[str]:
        """A sentence for each stage that nobody measured, for whoever shows results of this model."""
        kinds = {"roofline": "is computed from data sheets", "assumed": "is an assumption"}
        return [f"{stage} {kinds[o.kind]}: {o.source}" for stage, o in self.provenance.items() if o.kind in kinds]


def attended_pairs(new: float, past: float) -> float:
    """(query, key) pairs of `new` tokens after `past` ones: each sees those before it; half of its own chunk."""
    return new * (past + new / 2)


def load_cost_model(name: str) -> CostModel:
    """A JSON file, or a shipped one's name: `MODEL@DEVICE`, with `+ENGINE` if it is not of SGLang.

    Raises `ConfigError`.
    """
    if name.endswith(".json"):
        return datafile.read(Path(name), CostModel)
    known = shipped_cost_models()
    if name.lower() not in known:
        raise ConfigError(f"no cost model {name!r}; shipped are {', '.join(known)}, or give a JSON file")
    return datafile.read(datafile.shipped("cost_models", f"{name.lower()}.json"), CostModel)


def shipped_cost_models() -> list[str]:
    return datafile.shipped_names("cost_models")


def save_cost_model(cost: CostModel, file: Path) -> None:
    """Raises `ConfigError` if it cannot be written."""
    datafile.write(file, cost)
