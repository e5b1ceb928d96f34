"""Makes `.venv` able to run everything here: `python3 3rdparty/setup_env.py [--venv .venv]`.

Standard library only, because it runs before anything is installed. A second run with unchanged pins does nothing.
CPU profile without a GPU, the `[cuda]` extra with one; `--profile` overrides.
"""

from __future__ import annotations

import argparse
import ctypes.util
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "3rdparty" / "requirements"
MIN_PYTHON = (3, 11)
DEBIAN_LIBRARIES = {
    "libcurl4": "curl",
    "libibverbs1": "ibverbs",
    "libnuma1": "numa",
    "librdmacm1": "rdmacm",
    "liburing2": "uring",
}
EXTRAS = "dev,bench,planner,tracing"


class SetupError(Exception):
    """A step failed; the message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--profile", choices=["auto", "cpu", "cuda"], default="auto")
    args = parser.parse_args()
    try:
        if sys.version_info < MIN_PYTHON:
            raise SetupError(f"Python {'.'.join(map(str, MIN_PYTHON))} or newer is needed, this is {sys.version}")
        setup(args.venv, pick_profile(args.profile))
    except SetupError as error:
        print(f"\nsetup failed: {error}", file=sys.stderr)
        return 1
    return 0


def pick_profile(asked: str) -> str:
    if asked != "auto":
        return asked
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"


def setup(venv: Path, profile: str) -> None:
    stamp, wanted = venv / "sgl-epd-setup.txt", digest(profile)
    install_debian_libraries()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    started_at = time.monotonic()
    make_venv(venv)
    steps = cpu_steps() if profile == "cpu" else cuda_steps()
    for number, (title, arguments) in enumerate(steps, 1):
        run_pip(venv, f"[{number}/{len(steps)}] {title}", arguments)
    stamp.write_text(wanted)
    print(f"environment ready in {time.monotonic() - started_at:.0f} s: {venv} ({profile})", flush=True)


def digest(profile: str) -> str:
    """Changes whenever a pin, the project's metadata, the stand-in kernel package or the interpreter changes."""
    files = [ROOT / "pyproject.toml", Path(__file__), *sorted(PINS.glob("*.txt"))]
    kernel = ROOT / "3rdparty" / "sgl_kernel_cpu"
    files += sorted(path for path in kernel.rglob("*.py") if path.parts[len(kernel.parts)] != "build")
    parts = [profile.encode(), sys.version.encode(), *(path.read_bytes() for path in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def cpu_steps() -> list[tuple[str, list[str]]]:
    return [
        ("torch (large: 5.6 GB unpacked)", ["-r", str(PINS / "cpu-torch.txt")]),
        ("SGLang and Mooncake", ["--no-deps", "-r", str(PINS / "cpu-engine.txt")]),
        ("what SGLang imports on a CPU", ["--no-deps", "-r", str(PINS / "cpu-pure.txt")]),
        ("build tools", ["setuptools>=77", "wheel"]),
        (
            "the CPU stand-in for sgl_kernel",
            ["--no-deps", "--no-build-isolation", "--force-reinstall", str(ROOT / "3rdparty" / "sgl_kernel_cpu")],
        ),
        ("sgl-epd", ["-c", str(PINS / "cpu-pure.txt"), "--no-build-isolation", "-e", f"{ROOT}[{EXTRAS}]"]),
    ]


def cuda_steps() -> list[tuple[str, list[str]]]:
    return [
        ("build tools", ["setuptools>=77", "wheel"]),
        ("sgl-epd with SGLang for CUDA (about 11 GB)", ["--no-build-isolation", "-e", f"{ROOT}[cuda,{EXTRAS}]"]),
    ]


def make_venv(venv: Path) -> None:
    if (venv / "bin" / "pip").exists():
        return
    print(f"making {venv}", flush=True)
    command = [sys.executable, "-m", "venv", str(venv)]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return
    shutil.rmtree(venv, ignore_errors=True)
    install_packages([f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"], "to make a virtual environment")
    if subprocess.run(command).returncode != 0:
        raise SetupError(f"cannot make a virtual environment: try '{' '.join(command)}' by hand")


def run_pip(venv: Path, title: str, arguments: list[str]) -> None:
    """One pip call; its output is kept and shown only if it fails, a dot every few seconds otherwise."""
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    log = venv / "sgl-epd-setup.log"
    started_at = time.monotonic()
    print(f"{title} ", end="", flush=True)
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                print(".", end="", flush=True)
    print(f" {time.monotonic() - started_at:.0f} s", flush=True)
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise SetupError(f"pip ended with {process.returncode}:\n{tail}\n\nrepeat by hand: {' '.join(command)}")


def install_debian_libraries() -> None:
    """Mooncake's wheel links against libraries that no wheel carries."""
    missing = [package for package, name in DEBIAN_LIBRARIES.items() if ctypes.util.find_library(name) is None]
    if missing:
        install_packages(missing, "which Mooncake's library needs")


def install_packages(packages: list[str], reason: str) -> None:
    by_hand = f"install {', '.join(packages)} ({reason}): apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise SetupError(f"no apt-get here; please {by_hand}")
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and shutil.which("sudo") is None:
        raise SetupError(f"not root and no sudo here; please {by_hand}")
    print(f"installing Debian packages {' '.join(packages)}", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
        done = subprocess.run([*sudo, *command], env=env, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            raise SetupError(f"'{' '.join(command)}' failed; please {by_hand}")


if __name__ == "__main__":
    sys.exit(main())
