from __future__ import annotations

from pathlib import Path

import pytest

from sgl_epd.errors import ConfigError
from sgl_epd.host.config import ServeConfig
from sgl_epd.serve import main, read_config

EPD = ("--model-path", "m", "--encode", "1", "--prefill", "1", "--decode", "1")


def test_flags_for_others_may_begin_with_a_dash() -> None:
    config = read_config(
        [*EPD, "--prefill-args", "--one", "--decode-args", "--two 2 --three '4 5'", "--", "--all", "6"]
    )
    assert config.prefill_args == ("--one",)
    assert config.decode_args == ("--two", "2", "--three", "4 5")
    assert config.worker_args == ("--all", "6")


def test_yaml_lists_and_command_line_over_yaml(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("model-path: m\nencode: 2\nprefill: 1\ndecode: 1\nprefill_args: [--mem-fraction-static, 0.2]\n")
    config = read_config(["--config", str(path), "--encode", "3"])
    assert (config.encode, config.prefill, config.prefill_args) == (3, 1, ("--mem-fraction-static", "0.2"))


def test_an_unknown_flag_says_where_worker_flags_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EPD, "--tp", "2"]) == 2
    assert "--tp 2 (flags for the workers follow after `--`)" in capsys.readouterr().err


def test_dry_run_prints_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EPD, "--dry-run", "--port", "29876", "--", "--x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "-m sgl_epd.launch_server --role prefill" in lines[1]
    assert all(line.endswith("--x") or "--x " in line for line in lines[:3])
    assert "-m sgl_epd.launch_router --host 127.0.0.1 --port 29876" in lines[3]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "no workers: give --prefill and --decode"),
        ({"prefill": 1}, "--prefill without --decode: a request needs both"),
        ({"decode": 1}, "--decode without --prefill: a request needs both"),
        ({"encode": 1, "mixed": 1}, "--encode needs --prefill and --decode"),
        ({"encode": 1, "prefill": 1, "decode": 1, "mixed": 1}, "--mixed does not go with"),
        ({"mixed": -1}, "--mixed must not be negative"),
        ({"mixed": 1, "devices": ("0", "1")}, "--devices names the GPUs of 2 workers, but there are 1"),
        ({"mixed": 1, "startup_timeout_secs": 0}, "--startup-timeout-secs must be more than 0"),
        ({"mixed": 1, "drain_secs": -1}, "--drain-secs must not be negative"),
        ({"mixed": 1, "log_max_mib": 0}, "--log-max-mib must be at least 1"),
    ],
)
def test_contradictions_fail_at_once(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ServeConfig(model_path="m", **fields)  # type: ignore[arg-type]


def test_a_model_is_needed() -> None:
    with pytest.raises(ConfigError, match="--model-path is missing"):
        ServeConfig(mixed=1)
