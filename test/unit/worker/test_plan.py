"""Role and flags to a worker's command line: defaults, pass-through, and sentences for what contradicts a role."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sgl_epd.errors import ConfigError
from sgl_epd.worker.flags import complete, given, value
from sgl_epd.worker.plan import Machine, Role, WorkerPlan, make_plan


def first_not_taken(wished: int, taken: Sequence[int]) -> int:
    return next(port for port in range(wished, 65536) if port not in taken)


CPU = Machine(has_gpu=False, cpus="0-1", free_port=first_not_taken)
GPU = Machine(has_gpu=True, cpus="0-15", free_port=first_not_taken)


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def plan(role: str, *argv: str, machine: Machine = CPU, environ: dict[str, str] | None = None) -> WorkerPlan:
    return make_plan(Role(role), argv, machine, environ or {})


def test_encode_on_a_cpu(model: str) -> None:
    found = plan("encode", "--model-path", model)
    assert given(found.argv, "--encoder-only")
    assert value(found.argv, "--encoder-transfer-backend") == "zmq_to_scheduler"
    assert value(found.argv, "--dtype") == "float32"
    assert found.bootstrap_port is None
    assert found.env["SGL_EPD_ROLE"] == "encode"
    assert found.env["SGL_EPD_MODEL_ARCH"] == "Qwen2VLForConditionalGeneration"
    assert found.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0-1"


def test_prefill_with_encoders_is_language_only(model: str) -> None:
    found = plan("prefill", "--model-path", model, "--encoder-urls", "http://a:1", "http://b:2")
    assert given(found.argv, "--language-only")
    assert value(found.argv, "--disaggregation-mode") == "prefill"
    assert value(found.argv, "--disaggregation-transfer-backend") == "mooncake_tcp"
    assert value(found.argv, "--disaggregation-bootstrap-port") == str(found.bootstrap_port) == "8998"
    assert value(found.argv, "--encoder-bootstrap-port") == "8997"


def test_prefill_without_encoders_encodes_by_itself(model: str) -> None:
    assert not given(plan("prefill", "--model-path", model).argv, "--language-only")


def test_decode_on_a_cpu_backs_up_without_cuda(model: str) -> None:
    found = plan("decode", "--model-path", model)
    assert value(found.argv, "--disaggregation-mode") == "decode"
    assert value(found.argv, "--disaggregation-decode-retraction-backup") == "cpu_tensor"


def test_gpu_keeps_upstream_defaults(model: str) -> None:
    found = plan("prefill", "--model-path", model, machine=GPU)
    assert value(found.argv, "--disaggregation-transfer-backend") == "mooncake"
    for flag in ("--device", "--dtype", "--attention-backend", "--disable-overlap-schedule"):
        assert not given(found.argv, flag)
    assert "SGLANG_USE_CPU_ENGINE" not in found.env


def test_device_flag_beats_the_machine(model: str) -> None:
    assert "SGLANG_USE_CPU_ENGINE" in plan("mixed", "--model-path", model, "--device", "cpu", machine=GPU).env
    assert "SGLANG_USE_CPU_ENGINE" not in plan("mixed", "--model-path", model, "--device=cuda").env


def test_user_flags_and_environment_win(model: str) -> None:
    argv = ["--model-path", model, "--dtype=bfloat16", "--port", "31000", "--max-total-tokens", "99"]
    found = plan("mixed", *argv, environ={"OMP_NUM_THREADS": "8"})
    assert found.argv[: len(argv)] == tuple(argv)
    assert value(found.argv, "--dtype") == "bfloat16"
    assert found.port == 31000
    assert [arg for arg in found.argv if arg.startswith("--max-total-tokens")] == ["--max-total-tokens"]
    assert "OMP_NUM_THREADS" not in found.env


def test_unknown_flags_pass_through(model: str) -> None:
    found = plan("mixed", "--model-path", model, "--some-new-flag", "x", "--json-model-override-args", '{"a": 1}')
    assert found.argv[2:6] == ("--some-new-flag", "x", "--json-model-override-args", '{"a": 1}')


def test_ports_of_prefill_avoid_each_other(model: str) -> None:
    found = plan("prefill", "--model-path", model, "--port", "8998")
    ports = {found.port, found.bootstrap_port, int(value(found.argv, "--encoder-bootstrap-port") or 0)}
    assert len(ports) == 3


@pytest.mark.parametrize(
    ("role", "flags", "words"),
    [
        ("encode", ["--disaggregation-mode", "prefill"], "follows from --role encode"),
        ("encode", ["--encoder-urls", "http://a"], "prefill workers"),
        ("encode", ["--language-only"], "no language model"),
        ("decode", ["--encoder-urls", "http://a"], "never talks to encoders"),
        ("decode", ["--language-only"], "would wait"),
        ("mixed", ["--encoder-urls", "http://a"], "--role prefill"),
        ("mixed", ["--encoder-only"], "follows from --role"),
        ("prefill", ["--encoder-register-urls", "http://a"], "--encoder-urls"),
        ("mixed", ["--port", "http"], "from 1 to 65535"),
        ("mixed", ["--port", "99999"], "from 1 to 65535"),
        ("mixed", ["--port"], "needs a value"),
        ("prefill", ["--port", "9000", "--disaggregation-bootstrap-port", "9000"], "three different ports"),
    ],
)
def test_contradictions_are_explained(model: str, role: str, flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(role, "--model-path", model, *flags)


def test_model_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model-path is missing"):
        plan("mixed")
    with pytest.raises(ConfigError, match="no such folder"):
        plan("mixed", "--model-path", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"cannot read config\.json"):
        plan("mixed", "--model-path", str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        plan("mixed", "--model-path", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ConfigError, match="no vision or audio part"):
        plan("encode", "--model-path", str(tmp_path))
    assert plan("mixed", "--model-path", str(tmp_path)).env["SGL_EPD_MODEL_ARCH"] == "LlamaForCausalLM"


def test_hub_names_are_left_to_sglang() -> None:
    found = plan("encode", "--model-path", "Qwen/Qwen2-VL-7B-Instruct")
    assert "SGL_EPD_MODEL_ARCH" not in found.env


def test_flags() -> None:
    argv = ["--a", "1", "--b=2", "--c", "--a", "3"]
    assert value(argv, "--a") == "3"
    assert value(argv, "--b") == "2"
    assert value(argv, "--c") is None
    assert given(argv, "--c") and not given(argv, "--d")
    assert complete(["--a", "1"], [("--a", "2"), ("--d", "x"), ("--e",)]) == ["--a", "1", "--d", "x", "--e"]


def plan_with_refs(role: str, *argv: str, environ: dict[str, str] | None = None) -> WorkerPlan:
    return make_plan(Role(role), argv, CPU, environ or {}, native_refs=True)


def test_native_refs_are_off_unless_asked_for(model: str) -> None:
    prefill = ("--model-path", model, "--encoder-urls", "http://a:1")
    names = {"SGL_EPD_NATIVE_REFS", "SGLANG_ENCODER_MM_RECEIVER_MODE"}
    assert not names & plan("prefill", *prefill).env.keys()
    assert names <= plan_with_refs("prefill", *prefill).env.keys()
    assert names & plan_with_refs("decode", "--model-path", model).env.keys() == {"SGL_EPD_NATIVE_REFS"}


def test_native_refs_that_could_not_work_are_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="does not go with --role mixed"):
        plan_with_refs("mixed", "--model-path", model)
    with pytest.raises(ConfigError, match="needs --encoder-urls"):
        plan_with_refs("prefill", "--model-path", model)
    with pytest.raises(ConfigError, match="MM_RECEIVER_MODE=sgl-epd, but it is 'http'"):
        plan_with_refs(
            "prefill", "--model-path", model, "--encoder-urls", "http://a:1",
            environ={"SGLANG_ENCODER_MM_RECEIVER_MODE": "http"},
        )  # fmt: skip
