"""Finds the environment that a build is for, from inside the build.

Under build isolation `sys.path` is the isolated one, so `importlib.metadata` alone sees nothing. pip runs the build
with the target's own interpreter, whose install scheme still names the target's site-packages.
"""

from __future__ import annotations

import importlib.util
import site
import sys
import sysconfig
from pathlib import Path


def target_site_packages() -> list[str]:
    """Folders from which the target interpreter would import, most important first."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders.append(site.getusersitepackages())
    return list(dict.fromkeys(folders + sys.path))


def refuse_beside_real_kernels() -> None:
    """Raises SystemExit with a sentence if the real kernels are there."""
    source = Path(__file__).resolve().parent.parent / "sgl_kernel" / "_real.py"
    spec = importlib.util.spec_from_file_location("_real", source)
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    found = real.find_real(target_site_packages())
    if found is not None:
        raise SystemExit("error: " + real.refusal(found, sys.prefix))
