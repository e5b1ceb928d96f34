"""The stand-in keeps out of environments that hold the real kernels: when it is built, and when it is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

SENTENCE = "{name} {version} is installed in {folder}. sgl-epd-kernel-cpu is a stand-in"

# What pip's build isolation does to the target's interpreter: it starts, without its site-packages.
ISOLATION = """
import sys, sysconfig
sys.path = [folder for folder in sys.path if folder != sysconfig.get_path("purelib")]
"""
CHECK = "import target_environment; target_environment.refuse_beside_real_kernels()"


def install_metadata(folder: Path, name: str, version: str = "0.4.10") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=100, check=False)


class Target:
    """A virtual environment that the stand-in may be about to enter."""

    def __init__(self, root: Path) -> None:
        venv.create(root, with_pip=False)
        self.root = root
        self.python = root / "bin" / "python"
        self.site_packages = next(root.glob("lib/python*/site-packages"))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "target")


@pytest.fixture
def isolated(tmp_path: Path, package_root: Path) -> str:
    folder = tmp_path / "isolation"
    folder.mkdir()
    folder.joinpath("sitecustomize.py").write_text(ISOLATION)
    return f"{folder}:{package_root / 'build_backend'}"


@pytest.mark.parametrize("name", ["sglang-kernel", "sgl-kernel", "sglang-kernel-cpu", "sgl-kernel-cpu"])
def test_build_refuses_under_isolation(target: Target, isolated: str, name: str) -> None:
    install_metadata(target.site_packages, name)
    check = run(target.python, "-c", CHECK, PYTHONPATH=isolated)
    assert check.returncode == 1
    assert SENTENCE.format(name=name, version="0.4.10", folder=target.site_packages) in check.stderr


def test_build_passes_where_only_the_stand_in_is(target: Target, isolated: str) -> None:
    install_metadata(target.site_packages, "sgl-epd-kernel-cpu", "0.5.23")
    target.site_packages.joinpath("sgl_kernel").mkdir()
    target.site_packages.joinpath("sgl_kernel", "__init__.py").touch()
    check = run(target.python, "-c", CHECK, PYTHONPATH=isolated)
    assert (check.returncode, check.stderr) == (0, "")


def test_build_refuses_beside_a_package_of_unknown_origin(target: Target, isolated: str) -> None:
    target.site_packages.joinpath("sgl_kernel").mkdir()
    target.site_packages.joinpath("sgl_kernel", "__init__.py").touch()
    check = run(target.python, "-c", CHECK, PYTHONPATH=isolated)
    assert check.returncode == 1
    assert f"An sgl_kernel package of another origin is installed in {target.site_packages}" in check.stderr


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    "arguments", [["--python", "{root}"], ["--python={root}"], ["-p", "{root}/bin/python"], []], ids=str
)
def test_build_run_by_uv_refuses_for_the_environment_that_uv_installs_into(
    target: Target, isolated: str, arguments: list[str]
) -> None:
    """The parent process calls itself uv; the build's own interpreter is another one, as uv makes it."""
    install_metadata(target.site_packages, "sglang-kernel")
    options = " ".join(argument.format(root=target.root) for argument in arguments)
    active = {} if arguments else {"VIRTUAL_ENV": str(target.root)}
    # uv changes VIRTUAL_ENV for its child; the shell keeps the parent alive by having a second command.
    script = f'VIRTUAL_ENV=/nowhere "$BUILD_PYTHON" -c "{CHECK}" && exit 0; exit 1'
    shell = f"exec -a uv bash -c '{script}' pip install {options}"
    check = run("bash", "-c", shell, PYTHONPATH=isolated, BUILD_PYTHON=sys.executable, **active)
    assert check.returncode == 1
    assert SENTENCE.format(name="sglang-kernel", version="0.4.10", folder=target.site_packages) in check.stderr


@pytest.fixture
def source(tmp_path: Path, package_root: Path) -> Path:
    """A copy, since building writes into the source tree."""
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    return shutil.copytree(package_root, tmp_path / "source", ignore=ignore)


def pip_wheel(source: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", out)
    return run(sys.executable, "-m", "pip", "wheel", *options, source, **environment)


def test_pip_builds_a_wheel_with_every_module(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    left_over = source / "build" / "lib" / "sgl_kernel" / "gone.py"
    left_over.parent.mkdir(parents=True)
    left_over.touch()
    built = pip_wheel(source, tmp_path / "out")
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next((tmp_path / "out").glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("sgl_kernel/")}
    assert packed == {f"sgl_kernel/{module.name}" for module in source.glob("sgl_kernel/*.py")}


def test_pip_shows_the_refusal(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    install_metadata(tmp_path / "packages", "sgl-kernel")
    built = pip_wheel(source, tmp_path / "out", PYTHONPATH=str(tmp_path / "packages"))
    assert built.returncode == 1
    assert SENTENCE.format(name="sgl-kernel", version="0.4.10", folder=tmp_path / "packages") in built.stderr


@pytest.mark.parametrize("name", ["sglang-kernel", "sgl-kernel", "sglang-kernel-cpu"])
def test_import_refuses(tmp_path: Path, package_root: Path, name: str) -> None:
    install_metadata(tmp_path, name)
    imported = run(sys.executable, "-c", "import sgl_kernel", PYTHONPATH=f"{package_root}:{tmp_path}")
    assert imported.returncode == 1
    assert f"ImportError: {name} 0.4.10 is installed" in imported.stderr
    assert "Traceback" in imported.stderr and "torch" not in imported.stderr
