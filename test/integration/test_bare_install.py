"""The router installs and serves in an environment that has neither torch nor SGLang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sgl_epd.worker.machine import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALL_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh virtual environment with nothing but sgl-epd and what it declares."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    interpreter = venv / "bin" / "python"
    command = [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return interpreter


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """From another folder, so that only what was installed can be imported."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *arguments], cwd=python.parent, env=env, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def router(python: Path) -> Iterator[str]:
    port = free_port(23400)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    argv = ["--prefill", "http://127.0.0.1:9", "9", "--decode", "http://127.0.0.1:10", "--prometheus-port", "0"]
    process = subprocess.Popen(
        [str(python), "-m", "sgl_epd.launch_router", "--host", "127.0.0.1", "--port", str(port),
         "--pd-disaggregation", *argv],
        cwd=python.parent, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.mark.timeout(INSTALL_TIMEOUT_S + 120)
def test_nothing_heavy_is_installed_or_imported(python: Path) -> None:
    heavy = "torch sglang transformers mooncake sgl_kernel"
    script = f"import importlib.util as u; print([m for m in '{heavy}'.split() if u.find_spec(m)])"
    assert run(python, "-c", script).stdout.strip() == "[]"


@pytest.mark.timeout(INSTALL_TIMEOUT_S + 120)
@pytest.mark.parametrize("door", ["launch_router", "launch_server", "serve"])
def test_doors_show_their_help(python: Path, door: str) -> None:
    done = run(python, "-m", f"sgl_epd.{door}", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


@pytest.mark.timeout(INSTALL_TIMEOUT_S + 120)
def test_worker_says_what_to_install(python: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    done = run(python, "-m", "sgl_epd.launch_server", "--role", "mixed", "--model-path", str(tmp_path))
    assert done.returncode == 1
    assert "cannot import SGLang" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.timeout(INSTALL_TIMEOUT_S + 120)
def test_router_serves(router: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(f"{router}/liveness", timeout=2) as reply:
                assert reply.status == 200
            break
        except OSError:
            assert time.monotonic() < deadline, "the router did not come up"
            time.sleep(0.1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(f"{router}/v1/completions", data=b'{"prompt": "x"}'), timeout=20)
    assert caught.value.code in (502, 503)
    assert json.loads(caught.value.read())["error"]["message"]
    caught.value.close()
