"""Flags: upstream's names and defaults, the same in YAML and environment, contradictions refused with a sentence."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from sgl_epd.errors import ConfigError
from sgl_epd_router.args import RouterConfig, parse_args
from sgl_epd_router.build import policy_names, worker_specs
from sgl_epd_router.flags import WorkerArg
from sgl_epd_router.worker import Role

UPSTREAM_DEFAULTS = {
    "host": "0.0.0.0",
    "port": 30000,
    "worker_urls": (),
    "policy": "cache_aware",
    "cache_threshold": 0.3,
    "balance_abs_threshold": 64,
    "balance_rel_threshold": 1.5,
    "bucket_adjust_interval_secs": 5,
    "max_tree_size": 2**26,
    "max_payload_size": 512 * 2**20,
    "request_timeout_secs": 1800,
    "shutdown_grace_period_secs": 180,
    "request_id_headers": ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
    "max_concurrent_requests": -1,
    "queue_size": 100,
    "queue_timeout_secs": 60,
    "rate_limit_tokens_per_second": None,
    "retry_max_retries": 5,
    "retry_initial_backoff_ms": 50,
    "retry_max_backoff_ms": 30000,
    "retry_backoff_multiplier": 1.5,
    "retry_jitter_factor": 0.2,
    "cb_failure_threshold": 10,
    "cb_success_threshold": 3,
    "cb_timeout_duration_secs": 60,
    "cb_window_duration_secs": 120,
    "health_failure_threshold": 3,
    "health_success_threshold": 2,
    "health_check_timeout_secs": 5,
    "health_check_interval_secs": 60,
    "health_check_endpoint": "/health",
    "prometheus_host": "0.0.0.0",
    "log_level": "info",
    "otlp_traces_endpoint": "localhost:4317",
}
"""`sglang_router/router_args.py`."""


def test_defaults_are_upstreams() -> None:
    config = parse_args([], {})
    assert {name: getattr(config, name) for name in UPSTREAM_DEFAULTS} == UPSTREAM_DEFAULTS
    assert policy_names(config) == {
        Role.ENCODE: "consistent_hashing",
        Role.PREFILL: "cache_aware",
        Role.DECODE: "least_load",
        Role.REGULAR: "cache_aware",
    }


def test_pools_are_named_as_upstream_has_it() -> None:
    argv = (
        "--epd-disaggregation --encode http://e:1 --prefill http://p:1 8998 --prefill p2:1 none 9001 "
        "--decode http://d:1 --decode d2:2 --encoder-bootstrap-port 8000"
    )
    config = parse_args(argv.split(), {})
    assert config.prefill == (WorkerArg("http://p:1", 8998), WorkerArg("http://p2:1", None, 9001))
    found = [(s.role.value, s.url, s.bootstrap_port, s.encoder_port) for s in worker_specs(config)]
    assert found == [
        ("encode", "http://e:1", None, None),
        ("prefill", "http://p:1", 8998, 8000),
        ("prefill", "http://p2:1", None, 9001),
        ("decode", "http://d:1", None, None),
        ("decode", "http://d2:2", None, None),
    ]


def test_yaml_environment_and_flags_mean_the_same_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(
        "pd-disaggregation: true\nprefill: ['http://p:1 8998', [http://q:1, none]]\ndecode: http://d:1\nport: 1\n"
        "queue_size: 7\nretry-jitter-factor: 0.5\n"
    )
    config = parse_args(["--config", str(path), "--port", "3"], {"SGL_EPD_PORT": "2", "SGL_EPD_QUEUE_SIZE": "8"})
    assert config.prefill == (WorkerArg("http://p:1", 8998), WorkerArg("http://q:1"))
    assert config.decode == (WorkerArg("http://d:1"),)
    assert (config.port, config.queue_size, config.retry_jitter_factor) == (3, 8, 0.5)
    from_env = parse_args([], {"SGL_EPD_PD_DISAGGREGATION": "1", "SGL_EPD_PREFILL": "http://p:1 8998, http://q:1"})
    assert from_env.prefill == config.prefill


PD = ["--pd-disaggregation"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([*PD, "--epd-disaggregation"], "exclude each other"),
        ([*PD, "--encode", "http://e:1"], "--encode needs --epd-disaggregation"),
        (["--encode", "http://e:1"], "--encode needs --epd-disaggregation"),
        (["--prefill", "http://p:1"], "need --pd-disaggregation"),
        ([*PD, "--prefill", "http://p:1", "--decode", "http://p:1"], "http://p:1 is named twice"),
        ([*PD, "--prefill", "http://p:1", "http://q:1"], "is not a port number"),
        ([*PD, "--prefill", "ftp://p:1"], "must start with http"),
        ([*PD, "--decode", "http://p:1 2 3 4"], "expected URL"),
        (["--policy", "fastest"], "'fastest' is not one of random"),
        (["--port", "70000"], "must be a port number"),
        (["--port", "x"], "'x' is not a whole number"),
        (["--cache-threshold", "1.5"], "between 0 and 1"),
        (["--max-concurrent-requests", "0"], "-1 for no limit"),
        (["--cb-failure-threshold", "0"], "at least 1"),
        (["--request-timeout-secs", "0"], "more than 0"),
        (["--rate-limit-burst", "5"], "needs --rate-limit-tokens-per-second"),
        (["--tls-cert-path", "/x"], "belong together"),
        (["--ca-cert-path", "/no/such/file"], "there is no file /no/such/file"),
        (["--control-plane-api-keys", "key"], "ID:NAME:ROLE:KEY"),
        (["--worker-networks", "10.0.0.0/99"], "is not a network"),
        (["--service-discovery"], "register themselves"),
        (["--mini-lb"], "takes its place"),
        (["--prometheus-duration-buckets", "2", "1"], "must ascend"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_contradictions_are_refused_with_a_sentence(argv: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_args(argv, {})
    assert sentence in str(refused.value)


def test_a_misspelt_option_in_yaml_is_named_with_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("decode_polcy: random\n")
    with pytest.raises(ConfigError, match="did you mean 'decode_policy'"):
        parse_args(["--config", str(path)], {})


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--worker-urls", "http://w:1", "http://w:2"],
        ["--worker-urls", "http://w:1", "--encode", "http://e:1"],
        [*PD, "--prefill", "http://p:1", "--decode", "http://d:1", "--worker-urls", "http://w:1"],
        ["--epd-disaggregation", "--prefill", "http://p:1", "--decode", "http://d:1"],
    ],
)
def test_mixes_are_allowed(argv: list[str]) -> None:
    assert isinstance(parse_args(argv, {}), RouterConfig)


def test_workers_get_the_clients_key_unless_they_have_their_own() -> None:
    shared = parse_args(["--worker-urls", "http://w:1", "--api-key", "sesame"], {})
    own = parse_args(["--worker-urls", "http://w:1", "--api-key", "sesame", "--worker-api-key", "open"], {})
    assert [spec.api_key for spec in (*worker_specs(shared), *worker_specs(own))] == ["sesame", "open"]


def test_secrets_are_not_in_the_configurations_repr() -> None:
    argv = ["--api-key", "sesame1", "--admin-api-key", "sesame2", "--worker-api-key", "sesame3"]
    config = parse_args([*argv, "--control-plane-api-keys", "1:a:admin:sesame4"], {})
    assert "sesame" not in repr(config)
    assert config.api_key == ("sesame1",)


def test_every_flag_is_in_the_help_under_a_group() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "sgl_epd.launch_router", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "120"},
    ).stdout
    for field in dataclasses.fields(RouterConfig):
        flag = "--" + field.name.replace("_", "-")
        assert flag in shown or "--no-" + flag[2:] in shown
    for group in ("worker pools:", "policies:", "retries:", "circuit breaker:", "admission:", "security:"):
        assert f"\n{group}\n" in shown


def test_a_wrong_flag_ends_the_program_with_code_2_and_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sgl_epd.launch_router", "--prefill", "http://p:1"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: --prefill and --decode need --pd-disaggregation")
    assert ended.stderr.count("\n") == 1
