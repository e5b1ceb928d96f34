"""The memory model beside the EPD paper's measurements: `python -m sgl_epd.planner.paper_memory`.

Table 2 (images in a request), table 3 (batch) and table 8 (KV share) of arXiv 2501.05460, measured on A100s with vLLM
0.6.1. `allocator_factor` was chosen on table 8; tables 2 and 3 are predicted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from sgl_epd.errors import ConfigError
from sgl_epd.planner import datafile
from sgl_epd.planner.devices import load_device
from sgl_epd.planner.memory import GIB, MemorySettings, RequestSize, WorkerMemory
from sgl_epd.planner.models import ModelSpec, load_model
from sgl_epd.planner.stages import EP, E, P

_TEXT_TOKENS = 22
_KV_SHARE = 0.8
_IMAGES_IN_BATCH = 10
_MM_BLOCKS = 3000
"""Appendix E.1; a block holds what one slice or tile becomes."""
_TOLERANCE = 0.15
_TITLES = {"images": "Most images in a request", "batch": "Largest batch", "kv": "KV share (%)"}

Value = int | Literal["oom", "oocl"]


class PaperRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell of one of the paper's tables. `EP` is its DistServe, a shape with a plus is two kinds of worker."""

    table: Literal["images", "batch", "kv"]
    model: str
    image: str
    shape: Literal["E", "P", "EP", "E+P"]
    paper: Value
    images: int = 0
    reason: str = ""
    """Why ours differs by more than the tolerance."""


class PaperTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    rows: list[PaperRow]


class Compared(NamedTuple):
    row: PaperRow
    ours: Value

    @property
    def difference(self) -> float | None:
        """Relative, (ours - paper) / paper; None where one of them is no number, or the paper's is 0."""
        ours, paper = self.ours, self.row.paper
        return (ours - paper) / paper if isinstance(ours, int) and isinstance(paper, int) and paper else None

    @property
    def agrees(self) -> bool:
        """Within 15 %, or both say that it does not fit."""
        difference = self.difference
        return self.ours == self.row.paper if difference is None else abs(difference) <= _TOLERANCE


def paper_settings(model: ModelSpec) -> MemorySettings:
    """The engine of the paper: its fixed embedding cache, and MiniCPM's tower with attention scores written out."""
    rows = model.media.image(448, 448).embeddings
    return MemorySettings(
        reserved_bytes=GIB * 3 // 2,
        mm_cache_bytes=_MM_BLOCKS * rows * model.row_bytes,
        eager_vision_attention=model.family == "minicpmv",
    )


def compare() -> Iterator[Compared]:
    for row in datafile.read(datafile.shipped("paper_memory.json"), PaperTables).rows:
        yield Compared(row, _ours(row, load_model(row.model)))


def _ours(row: PaperRow, model: ModelSpec) -> Value:
    device, settings = load_device("a100-80g"), paper_settings(model)
    workers = {name: WorkerMemory(model, device, stages, settings) for name, stages in (("E", E), ("P", P), ("EP", EP))}
    width, height = map(int, row.image.split("x"))
    image = model.media.image(width, height)
    if row.table == "images":
        limits = [workers[shape].max_images(image, _TEXT_TOKENS, _KV_SHARE) for shape in row.shape.split("+")]
        return min(limit.value for limit in limits)
    worker = workers[row.shape]
    if row.table == "batch":
        return worker.max_batch(RequestSize(_TEXT_TOKENS, image.times(_IMAGES_IN_BATCH)), _KV_SHARE).value
    try:
        share = round(100 * worker.max_kv_share(RequestSize(_TEXT_TOKENS, image.times(row.images))))
    except ConfigError:
        # The paper's tests ran out of memory before they came to the context's end.
        memory = worker.activation_bytes(RequestSize(_TEXT_TOKENS, image.times(row.images)))
        return "oom" if memory > worker.free_bytes else "oocl"
    return share or "oom"


def main() -> int:
    """Exit code 1 if a cell differs by more than 15 % and nobody has said why."""
    rows = list(compare())
    console = Console(width=max(140, Console().width))
    for name, title in _TITLES.items():
        console.print(_table(title, [each for each in rows if each.row.table == name]))
    agreeing = sum(each.agrees for each in rows)
    reasons: dict[str, list[str]] = {}
    for each in rows:
        if not each.agrees:
            reasons.setdefault(each.row.reason or "no reason known", []).append(_name(each.row))
    console.print(f"{agreeing} of {len(rows)} cells within {_TOLERANCE:.0%}. The others:")
    for reason, names in reasons.items():
        console.print(f"- {', '.join(names)}: {reason}")
    return int("no reason known" in reasons)


def _name(row: PaperRow) -> str:
    return f"{row.table} {row.model} {row.shape} {row.images or row.image}"


def _table(title: str, rows: list[Compared]) -> Table:
    table = Table(title=title)
    for column in ("model", "image", "images", "shape", "paper", "ours", "difference"):
        table.add_column(column, justify="left" if column in ("model", "shape") else "right")
    for each in rows:
        row, difference = each.row, each.difference
        shown = "" if difference is None else f"{difference:+.0%}"
        cells = [row.model, row.image, str(row.images or ""), row.shape, str(row.paper), str(each.ours), shown]
        table.add_row(*cells, style=None if each.agrees else "yellow")
    return table


if __name__ == "__main__":
    sys.exit(main())
