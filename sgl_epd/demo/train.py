"""`python -m sgl_epd.demo.train`: the door to the training code, which needs torch and lives with the engine."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Trains the demo model and writes its checkpoint; `--help` lists the recipe."""
    importlib.import_module("sgl_epd_srt.demo_training.train").main(sys.argv[1:])


if __name__ == "__main__":
    main()
