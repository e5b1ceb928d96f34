"""Finds the environment that a build is for, from inside the build, and refuses one that holds the real kernels.

Under build isolation `sys.path` is the isolated one, so `importlib.metadata` alone sees nothing. pip runs the build
with the target's own interpreter, whose install scheme still names the target's site-packages. uv runs it with an
interpreter of its own, and only uv's environment and arguments tell where it will install.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

OWN_DISTRIBUTION = "sgl-epd-kernel-cpu"


def refuse_beside_real_kernels() -> None:
    """Raises SystemExit with a sentence if something else owns `sgl_kernel` where this build will be installed."""
    real = _load_real()
    for folder in target_site_packages():
        found = real.find_real([folder]) or _foreign_package(folder)
        if found is not None:
            raise SystemExit("error: " + real.refusal(found, folder))


def target_site_packages() -> list[str]:
    """Folders from which the target interpreter will import."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if sys.prefix == sys.base_prefix:  # a virtual environment does not see the user's packages
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys([*folders, *_uv_site_packages(), *sys.path]))


def _load_real() -> ModuleType:
    source = Path(__file__).resolve().parent.parent / "sgl_kernel" / "_real.py"
    spec = importlib.util.spec_from_file_location("_real", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _foreign_package(folder: str) -> str | None:
    """An installed `sgl_kernel` that is neither ours nor of a distribution that we know."""
    package = Path(folder, "sgl_kernel", "__init__.py")
    ours = any(importlib.metadata.distributions(name=OWN_DISTRIBUTION, path=[folder]))
    is_source_tree = Path(folder).resolve() == Path(__file__).resolve().parent.parent
    return None if ours or is_source_tree or not package.exists() else "An sgl_kernel package of another origin"


def _uv_site_packages() -> list[str]:
    """Those of the environment that uv installs into, if uv is what runs this build (Linux only)."""
    uv = Path("/proc", str(os.getppid()))
    try:
        arguments = uv.joinpath("cmdline").read_text().rstrip("\0").split("\0")
        variables = dict(line.partition("=")[::2] for line in uv.joinpath("environ").read_text().split("\0"))
        folder = uv.joinpath("cwd").resolve(strict=True)
    except OSError:
        return []
    if Path(arguments[0]).name != "uv":
        return []
    environment = folder / (_python_option(arguments) or _active_environment(variables) or ".venv")
    # `--python` takes an environment or the interpreter inside it.
    root = environment.parent.parent if environment.is_file() else environment
    return [str(path) for path in root.glob("lib/python*/site-packages")]


def _active_environment(variables: dict[str, str]) -> str | None:
    return variables.get("VIRTUAL_ENV") or variables.get("CONDA_PREFIX")


def _python_option(arguments: list[str]) -> str | None:
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if option in ("--python", "-p"):
            return value
        if option.startswith("--python="):
            return option.partition("=")[2]
    return None
