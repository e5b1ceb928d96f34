"""The model class of the architecture named in `SGL_EPD_MODEL_ARCH`, taken from SGLang's own model files."""

from __future__ import annotations

import importlib
import os

from sgl_epd_srt.hooks.mm_processors import ARCH_ENV, modules_naming

PACKAGE = "sglang.srt.models"


def find(arch: str) -> list[type]:
    """`[class]`, or `[]` when no model file of SGLang defines exactly one entry class of that name."""
    for name in modules_naming(PACKAGE, f"class {arch}("):
        entry = getattr(importlib.import_module(name), "EntryClass", [])
        for cls in entry if isinstance(entry, list) else [entry]:
            if cls.__name__ == arch:
                return [cls]
    return []


EntryClass = find(os.environ[ARCH_ENV]) if os.environ.get(ARCH_ENV) else []
