"""Which distributions own the import name `sgl_kernel` for real.

Shared by the build (which refuses to install over them) and the package (which refuses to be imported beside them).
Needs nothing but the standard library, since the build loads it by its path.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

REAL_DISTRIBUTIONS = ("sglang-kernel", "sgl-kernel", "sgl-kernel-cpu", "sgl-kernel-xpu")


def find_real(path: Iterable[str] | None = None) -> str | None:
    """`"name version"` of a real kernel distribution on `path` (default: `sys.path`), or None."""
    options = {} if path is None else {"path": list(path)}
    for name in REAL_DISTRIBUTIONS:
        for found in importlib.metadata.distributions(name=name, **options):
            return f"{name} {found.version}"
    return None


def refusal(found: str, where: str) -> str:
    """The sentence for whoever has both."""
    return (
        f"{found} is installed in {where}. sgl-epd-kernel-cpu is a stand-in for it on CPUs and provides the same "
        "import name, sgl_kernel: the two cannot share an environment. Use another environment for the CPU profile, or remove "
        f"one: `pip uninstall {found.split()[0]} sgl-epd-kernel-cpu`, then install the one you want again."
    )
