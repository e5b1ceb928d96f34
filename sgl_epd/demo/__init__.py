"""The demo model: a small Qwen2-VL checkpoint of ours that really reads numbers and shapes.

It is the default model of the demo and of the real-engine tests: a wrong embedding, a swapped image
or a lost KV block shows as a wrong answer. Importing this package needs neither torch nor transformers.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def model_path() -> Path:
    """The folder of the shipped checkpoint, to be given to `--model-path`."""
    return _HERE / "checkpoint"
