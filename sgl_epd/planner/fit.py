"""Coefficients from measured steps: `python -m sgl_epd.planner.fit SAMPLES.jsonl --base MODEL@DEVICE --out COST.json`.

Relative errors are minimised, so that a short step counts as much as a long one, and no coefficient may be negative
(Lawson and Hanson's NNLS in scipy). A third of the samples is held back first and predicted; the saved coefficients use
all of them. The formulas are linear, so a sample may also be a mean over steps, with the means of its features: that is
what the sums and counts of a Prometheus histogram give.
"""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sgl_epd import config
from sgl_epd.config import option
from sgl_epd.errors import ConfigError
from sgl_epd.planner import cost_model as costs
from sgl_epd.planner.cost_model import CostModel, HeldOut, Provenance
from sgl_epd.planner.roofline import resolve_cost_model

Fitted = Literal["preprocess", "encode", "prefill", "decode", "embedding_transfer", "kv_transfer"]
_HELD_OUT_SHARE = 3
_SAMPLES_PER_COEFFICIENT = 3
Amount = Annotated[float, msgspec.Meta(ge=0)]

# Coefficient -> feature, "" for the constant.
FEATURES: dict[str, dict[str, str]] = {
    "preprocess": {"item_s": "items", "megapixel_s": "megapixels"},
    "encode": {"step_s": "", "patch_s": "patches", "patch_squared_s": "patches_squared"},
    "prefill": {"step_s": "", "token_s": "new", "pair_s": "pairs"},
    "decode": {"step_s": "", "context_s": "context", "sequence_s": "sequences"},
    "embedding_transfer": {"latency_s": "", "byte_s": "nbytes"},
    "kv_transfer": {"latency_s": "", "byte_s": "nbytes"},
}


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured step, a line of the file. Fields of other stages stay 0."""

    stage: Fitted
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    items: Amount = 0.0
    megapixels: Amount = 0.0
    patches: Amount = 0.0
    patches_squared: Amount = 0.0
    new: Amount = 0.0
    pairs: Amount = 0.0
    """`cost_model.attended_pairs` over the batch."""
    context: Amount = 0.0
    sequences: Amount = 0.0
    nbytes: Amount = 0.0


def read_samples(file: Path) -> list[Sample]:
    """JSON lines. Raises `ConfigError` with the line's number."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    samples = []
    for number, line in enumerate(lines, 1):
        try:
            samples.append(msgspec.json.decode(line, type=Sample))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
    return samples


def fit_stage(stage: Fitted, samples: Sequence[Sample], *, seed: int = 0) -> tuple[dict[str, float], HeldOut]:
    """Coefficients by name, and the error on samples held back.

    Raises `ConfigError` if there are too few samples or they do not tell the coefficients apart.
    """
    features = FEATURES[stage]
    needed = _SAMPLES_PER_COEFFICIENT * len(features)
    if len(samples) < needed:
        raise ConfigError(f"{stage}: {len(samples)} samples, at least {needed} are needed")
    table, seconds = _rows(features.values(), samples)
    order = np.random.default_rng(seed).permutation(len(samples))
    held, used = order[::_HELD_OUT_SHARE], np.delete(order, np.s_[::_HELD_OUT_SHARE])
    trial = _relative_nnls(stage, table[used], seconds[used])
    errors = table[held] @ trial / seconds[held] - 1.0
    final = _relative_nnls(stage, table, seconds)
    report = HeldOut(
        samples=len(held),
        mean_abs=float(np.abs(errors).mean()),
        max_abs=float(np.abs(errors).max()),
        bias=float(errors.mean()),
    )
    return dict(zip(features, map(float, final), strict=True)), report


def fit(base: CostModel, samples: Sequence[Sample], *, source: str, created: str, seed: int = 0) -> CostModel:
    """`base` with every stage that has samples replaced by its fit; the others keep their provenance.

    Raises `ConfigError`.
    """
    fitted: dict[str, Any] = {}
    provenance = dict(base.provenance)
    for stage in dict.fromkeys(sample.stage for sample in samples):
        found, held_out = fit_stage(stage, [each for each in samples if each.stage == stage], seed=seed)
        fitted[stage] = type(getattr(base, stage))(**found)
        provenance[stage] = Provenance(kind="measured", source=source, held_out=held_out)
    if not fitted:
        raise ConfigError("there are no samples to fit")
    return msgspec.structs.replace(base, **fitted, provenance=provenance, created=created)


def _rows(features: Any, samples: Sequence[Sample]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    table = [[getattr(sample, feature) if feature else 1.0 for feature in features] for sample in samples]
    return np.array(table, dtype=np.float64), np.array([sample.seconds for sample in samples], dtype=np.float64)


def _relative_nnls(stage: str, table: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise ConfigError("fitting needs scipy: pip install 'sgl-epd[planner]'") from error
    relative = table / seconds[:, None]
    # Columns differ by many orders of magnitude (1 against patches squared).
    scale = np.linalg.norm(relative, axis=0)
    names = list(FEATURES[stage])
    if not scale.all():
        raise ConfigError(f"{stage}: all samples have 0 for {names[int(np.argmin(scale))]}")
    if np.linalg.matrix_rank(relative / scale, tol=1e-6) < len(names):
        raise ConfigError(f"{stage}: the samples do not tell {', '.join(names)} apart; vary their sizes independently")
    solution: NDArray[np.float64] = nnls(relative / scale, np.ones(len(seconds)))[0] / scale
    return solution


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """Flags of the command."""

    samples: str = option("", "JSON lines of measured steps", group="fit")
    base: str = option(
        "",
        "Cost model whose other stages are kept: a JSON file, or MODEL@DEVICE (computed if none is shipped)",
        group="fit",
    )
    out: str = option("cost_model.json", "Where the result goes", group="fit")
    source: str = option("", "What was measured, where and how; saved with the result", group="fit")
    seed: int = option(0, "Of the samples that are held back", group="fit")

    def __post_init__(self) -> None:
        for name in ("samples", "base", "source"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is needed")


def main(argv: Sequence[str]) -> int:
    try:
        flags = config.parse(FitConfig, argv, prog="python -m sgl_epd.planner.fit", description=__doc__ or "")
        samples = read_samples(Path(flags.samples))
        today = datetime.date.today().isoformat()
        base = resolve_cost_model(flags.base)
        result = fit(base, samples, source=flags.source, created=f"{today}, sgl_epd.planner.fit", seed=flags.seed)
        costs.save_cost_model(result, Path(flags.out))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    Console().print(report(result))
    return 0


def report(cost: CostModel) -> Table:
    """Each stage's coefficients and held-out error."""
    table = Table(title=f"{cost.model} on {cost.device}")
    for column in ("stage", "coefficients", "from", "held out", "mean error", "worst", "bias"):
        table.add_column(column)
    for stage, origin in cost.provenance.items():
        part = getattr(cost, stage, None)
        values = msgspec.structs.asdict(part) if part is not None else {"hop_s": cost.hop_s}
        shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value)
        error = origin.held_out
        cells = [stage, shown, origin.kind]
        if error is not None:
            cells += [str(error.samples), f"{error.mean_abs:.1%}", f"{error.max_abs:.1%}", f"{error.bias:+.1%}"]
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
