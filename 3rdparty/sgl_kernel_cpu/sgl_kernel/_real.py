"""Which distributions own the import name `sgl_kernel` for real.

Shared by the build (which refuses to install over them) and the package (which refuses to be imported beside them).
Needs nothing but the standard library, since the build loads it by its path.
"""

from __future__ import annotations

import importlib.metadata
import sys

# `sglang-kernel` for CUDA, ROCm and MUSA; upstream's CPU and XPU builds; and the names that all of them had before 0.4.
REAL_DISTRIBUTIONS = (
    "sglang-kernel",
    "sglang-kernel-cpu",
    "sglang-kernel-xpu",
    "sgl-kernel",
    "sgl-kernel-cpu",
    "sgl-kernel-xpu",
)


def find_real(path: list[str] | None = None) -> str | None:
    """`"name version"` of a real kernel distribution on `path` (default: `sys.path`), or None."""
    for name in REAL_DISTRIBUTIONS:
        for found in importlib.metadata.distributions(name=name, path=sys.path if path is None else path):
            return f"{name} {found.version}"
    return None


def refusal(found: str, where: str) -> str:
    """The sentence for whoever has both."""
    return (
        f"{found} is installed in {where}. sgl-epd-kernel-cpu is a stand-in for it on CPUs and provides the same "
        "import name, sgl_kernel: the two cannot share an environment. Use another environment for the CPU profile, "
        "or uninstall both and install again the one that you want."
    )
