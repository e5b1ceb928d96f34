"""Import only the multimodal processors that can serve the model, not all of them with all their models.

Upstream: `sglang.srt.managers.multimodal_processor.import_processors` (0.5.23), which imports every module of
`sglang.srt.multimodal.processors` and through them dozens of model files, once in the tokenizer process and once in
the scheduler of a prefill worker. A module is kept when its text names the model's architecture; if none does,
upstream's function imports all.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sgl_epd_srt.upstream import expect, wrap

logger = logging.getLogger(__name__)
ARCH_ENV = "SGL_EPD_MODEL_ARCH"
PACKAGE = "sglang.srt.multimodal.processors"


def install() -> None:
    # The loop below relies on how a processor declares its models and on how upstream registers it.
    expect("sglang.srt.managers.multimodal_processor.get_mm_processor_cls", "8d80939cb17c")
    wrap("sglang.srt.managers.multimodal_processor.import_processors", "4e9b437f5ae7", _import_wanted)


def _import_wanted(original: Callable[..., None], package_name: str, overwrite: bool = False) -> None:
    arch = os.environ.get(ARCH_ENV)
    names = modules_naming(package_name, arch) if arch and package_name == PACKAGE and not overwrite else []
    if not any(_register(importlib.import_module(name), arch) for name in names):
        original(package_name, overwrite)


def modules_naming(package_name: str, word: str) -> list[str]:
    """Dotted names of the modules directly in a package whose source contains `word`; nothing is imported but the
    package."""
    found = []
    for folder in importlib.import_module(package_name).__path__:
        for path in sorted(Path(folder).glob("*.py")):
            if word in path.read_text(encoding="utf-8"):
                found.append(f"{package_name}.{path.stem}")
    return found


def _register(module: Any, arch: str | None) -> bool:
    """Put the module's processors into upstream's mapping; true if one of them serves `arch`."""
    from sglang.srt.managers.multimodal_processor import PROCESSOR_MAPPING
    from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor

    serves = False
    for _, cls in inspect.getmembers(module, inspect.isclass):
        if cls.__module__ == module.__name__ and issubclass(cls, BaseMultimodalProcessor):
            for model in _models_of(cls):
                PROCESSOR_MAPPING[model] = cls
                serves = serves or model.__name__ == arch
    return serves


def _models_of(processor: Any) -> list[type]:
    """Each processor class declares its models; the base class does not, so this is untyped upstream."""
    return list(processor.models)
