"""The shipped cost models, made anew: `python -m sgl_epd.planner.ship FOLDER`. A test compares them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sgl_epd.errors import ConfigError
from sgl_epd.planner import published
from sgl_epd.planner.cost_model import CostModel, save_cost_model
from sgl_epd.planner.devices import load_device
from sgl_epd.planner.models import load_model
from sgl_epd.planner.roofline import roofline

ROOFLINES = (("qwen2.5-vl-7b", "h100-80g"), ("qwen2.5-vl-7b", "h200-141g"), ("qwen2.5-vl-7b", "a100-80g"))


def shipped() -> Iterator[tuple[str, CostModel]]:
    """Name and model of each that is computed; measured ones are shipped as they were fitted."""
    paper = published.read_published()
    for name in published.MODELS:
        for device in published.DEVICES:
            # The engine's name keeps them apart from a roofline of the same pair, which stands for today's engines.
            yield f"{name}@{device}+{published.ENGINE}", published.cost_model(paper, name, device)
    for name, device in ROOFLINES:
        yield f"{name}@{device}", roofline(load_model(name), load_device(device), created="sgl_epd.planner.roofline")


def main(argv: Sequence[str]) -> int:
    try:
        if len(argv) != 1:
            raise ConfigError("usage: python -m sgl_epd.planner.ship FOLDER")
        for name, cost in shipped():
            save_cost_model(cost, Path(argv[0]) / f"{name}.json")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
