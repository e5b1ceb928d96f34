"""The peers' own virtual environment: pinned releases, kept apart from ours, built once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# sglang-router also holds mini_lb.
PINS = {"sglang-router": "0.3.2", "vllm-router": "0.1.17"}


def peers_python(folder: Path) -> Path:
    """The interpreter of the peers' environment, which is made or completed when needed."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder} for {', '.join(PINS)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    installed = versions(python)
    if any(installed.get(name) != pin for name, pin in PINS.items()):
        wanted = [f"{name}=={pin}" for name, pin in PINS.items()]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    return python


def versions(python: Path) -> dict[str, str]:
    """Distribution name -> version, as pip lists them."""
    command = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return {entry["name"]: entry["version"] for entry in json.loads(listed.stdout)}
