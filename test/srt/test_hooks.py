"""The hooks refuse an SGLang that they were not written for, loudly, and leave stock SGLang alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sgl_epd.errors import EngineMismatchError
from sgl_epd_srt import upstream

CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}


def python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SGL")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**clean, **CPU, **env},
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "SGLANG_VERSION", "0.5.22")
    with pytest.raises(EngineMismatchError, match=r"sglang==0\.5\.22.* but 0\.5\.23 is installed"):
        upstream.check_version()


def test_a_changed_or_missing_symbol_is_refused() -> None:
    with pytest.raises(EngineMismatchError, match="is not the one a hook"):
        upstream.expect("sgl_epd.config.flag", "0" * 12)
    with pytest.raises(EngineMismatchError, match=r"no sgl_epd\.config\.nothing"):
        upstream.expect("sgl_epd.config.nothing", "0" * 12)


def test_wrap_reaches_the_original_once() -> None:
    import sgl_epd.config as target

    original = target.flag
    digest = upstream.fingerprint(original)
    try:
        for _ in range(2):
            upstream.wrap("sgl_epd.config.flag", digest, lambda flag, name: flag(name) + "!")
        assert target.flag("a_b") == "--a-b!"
    finally:
        target.flag = original


def test_the_worker_ends_when_a_hook_does_not_fit() -> None:
    """SGLang's loader swallows exceptions of plugins; a mismatch must end the process all the same."""
    script = (
        "import sglang.srt.managers.scheduler as s\n"
        "def maybe_sleep_on_idle(self): pass\n"
        "s.Scheduler.maybe_sleep_on_idle = maybe_sleep_on_idle\n"
        "import inspect; inspect.getsource = lambda f, g=inspect.getsource: 'x' if f is maybe_sleep_on_idle else g(f)\n"
        "from sglang.srt.plugins import load_plugins; load_plugins(); print('served')"
    )
    done = python(script, SGL_EPD_ROLE="mixed")
    assert done.returncode == 1
    assert "served" not in done.stdout
    assert "Scheduler.maybe_sleep_on_idle is not the one a hook of sgl-epd was written for" in done.stderr


def test_stock_sglang_is_left_alone() -> None:
    script = (
        "from sglang.srt.plugins import load_plugins; load_plugins()\n"
        "import sglang.srt.managers.multimodal_processor as m\n"
        "print(hasattr(m.import_processors, '__sgl_epd_original__'))"
    )
    assert python(script).stdout.strip() == "False"
    assert python(script, SGL_EPD_ROLE="mixed").stdout.strip() == "True"


def test_only_the_wanted_model_is_imported() -> None:
    script = (
        "from sglang.srt.models.registry import ModelRegistry as r; import sys\n"
        "cls, arch = r.resolve_model_cls(['Qwen2VLForConditionalGeneration'])\n"
        "print(cls.__module__, arch, 'sglang.srt.models.grok' in sys.modules)\n"
        "print(r.is_arch_supported('Grok1ForCausalLM'), 'sglang.srt.models.grok' in sys.modules)"
    )
    done = python(
        script,
        SGL_EPD_MODEL_ARCH="Qwen2VLForConditionalGeneration",
        SGLANG_EXTERNAL_MODEL_PACKAGE="sgl_epd_srt.wanted_models",
    )
    first, second = done.stdout.splitlines()[-2:]
    assert first == "sglang.srt.models.qwen2_vl Qwen2VLForConditionalGeneration False"
    assert second == "True True"
