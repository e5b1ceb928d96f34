"""As an operator meets it: the command line, the files and variables behind it, logs, metrics, signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster import Cluster, chat, cluster
from fakes import Gate, Status
from http_client import Link
from router_process import RouterProcess, router_process

CHAT = "/v1/chat/completions"
UPSTREAM = """
--worker-urls --policy --prefill-policy --decode-policy --pd-disaggregation --epd-disaggregation --encode-policy
--cache-threshold --balance-abs-threshold --balance-rel-threshold --max-payload-size --request-timeout-secs
--shutdown-grace-period-secs --request-id-headers --cors-allowed-origins --max-concurrent-requests --queue-size
--queue-timeout-secs --rate-limit-tokens-per-second --retry-max-retries --retry-initial-backoff-ms
--retry-max-backoff-ms --retry-backoff-multiplier --retry-jitter-factor --disable-retries --cb-failure-threshold
--cb-success-threshold --cb-timeout-duration-secs --cb-window-duration-secs --disable-circuit-breaker
--health-failure-threshold --health-success-threshold --health-check-timeout-secs --health-check-interval-secs
--health-check-endpoint --disable-health-check --prometheus-port --prometheus-host --log-level --api-key
--control-plane-api-keys --tls-cert-path --tls-key-path --client-cert-path --client-key-path --ca-cert-path
--enable-trace --otlp-traces-endpoint
"""
"""Flags of `sglang_router` that must exist under the same name."""
ROOT = Path(__file__).resolve().parents[3]


async def run(*flags: str, environ: Mapping[str, str] = {}) -> tuple[int, str]:
    """Run the command to its end; (exit code, what it printed)."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'router'}", **environ}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sgl_epd.launch_router", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
    )
    async with asyncio.timeout(20):
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_help_is_grouped_and_complete() -> None:
    code, text = await run("--help")
    assert code == 0
    for heading in ("worker pools:", "policies:", "retries:", "circuit breaker:", "health checks:", "security:"):
        assert heading in text
    assert [flag for flag in UPSTREAM.split() if flag not in text] == []


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--port", "hello"], "--port"),
        (["--policy", "best"], "best"),
        (["--pd-disaggregation", "--prefill", "ftp://x"], "ftp://x"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
        (["--mini-lb"], "--mini-lb"),
        (["--queue-size", "-1"], "--queue-size"),
    ],
)
async def test_wrong_flags_end_with_a_sentence(flags: list[str], word: str) -> None:
    code, text = await run(*flags)
    assert code == 2
    assert word in text
    assert "Traceback" not in text


async def test_yaml_and_environment_and_flags(tmp_path: Path) -> None:
    """The same names everywhere; flags beat the environment, the environment beats the file."""
    from sgl_epd_router.args import parse_args

    file = tmp_path / "router.yaml"
    file.write_text(
        "pd-disaggregation: true\nprefill:\n  - http://p:1 8998\ndecode: [http://d:1]\nport: 1\nqueue_size: 7\n"
    )
    environ = {"SGL_EPD_PORT": "2", "SGL_EPD_QUEUE_TIMEOUT_SECS": "9"}
    config = parse_args(["--config", str(file), "--queue-timeout-secs", "3"], environ)
    assert (config.port, config.queue_size, config.queue_timeout_secs) == (2, 7, 3.0)
    assert config.prefill[0].bootstrap_port == 8998
    file.write_text("prot: 1\n")
    code, text = await run("--config", str(file))
    assert code == 2
    assert "did you mean 'port'" in text


def samples(text: str, name: str) -> dict[str, float]:
    """Label text -> value of one metric in Prometheus' format."""
    found = {}
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name:
            found[head.partition("{")[2].rstrip("}")] = float(value)
    return found


async def scrape(c: Cluster) -> str:
    reply = await c.request("GET", "/metrics")
    assert reply.status == 200
    assert (reply.header("content-type") or "").startswith("text/plain")
    return reply.body.decode()


async def test_metrics_count_what_happened() -> None:
    async with cluster(prefill=2, decode=1) as c:
        for worker in c.prefill:
            worker.script(Status(500), when=lambda _: not any(leg.fault for w in c.prefill for leg in w.requests))
        assert (await c.chat()).status == 200
        assert (await c.chat(stream=True)).status == 200
        assert (await c.request("POST", CHAT, b"nonsense")).status == 400
        text = await scrape(c)
        names = sorted({line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")})
        assert all(name.startswith("sgl_epd_") for name in names), names
        totals = {name: sum(samples(text, name).values()) for name in names}
        requests = {
            k: v for name in names for k, v in samples(text, name + "").items() if CHAT in k and 'status="200"' in k
        }
        assert sum(requests.values()) == 2, text
        assert any("retr" in name and total == 1 for name, total in totals.items()), totals


async def test_metrics_are_valid_exposition_format() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with cluster(prefill=1, decode=1) as c:
        await c.chat()
        await c.chat(stream=True)
        families = list(text_string_to_metric_families(await scrape(c)))
        assert len(families) > 10
        for family in families:
            assert family.documentation, family.name
            assert family.type != "unknown", family.name


async def test_metric_labels_are_bounded() -> None:
    """A client must not be able to fill the memory of Prometheus through paths or model names."""
    async with cluster(regular=1) as c:
        for i in range(50):
            await c.request("GET", f"/nonsense/{i}")
            await c.chat(model=f"model-{i}")
        text = await scrape(c)
        assert "nonsense/4" not in text
        assert "model-4" not in text


async def test_json_logs_are_json_and_hold_no_secrets() -> None:
    flags = ["--log-format", "json", "--log-level", "debug", "--api-key", "sk-hidden", "--worker-api-key", "sk-worker"]
    async with cluster(prefill=1, decode=1, start=False) as c, router_process(*c.flags(), *flags) as router:
        await router.ready()
        c.prefill[0].script(Status(500))
        await router.request("POST", CHAT, chat("SECRET"), authorization="Bearer sk-hidden")
        await router.end()
        lines = [json.loads(line) for line in router.log.decode().splitlines()]
        assert lines
        assert all({"level", "message"} <= set(line) for line in lines), lines[0]
        for secret in (b"SECRET", b"sk-hidden", b"sk-worker"):
            assert secret not in router.log


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_sigterm_lets_requests_end(stream: bool) -> None:
    async with cluster(prefill=1, decode=1, start=False) as c, router_process(*c.flags()) as router:
        await router.ready()
        gate = Gate(after=2) if stream else Gate()
        c.decode[0].script(gate)
        running = asyncio.create_task(router.request("POST", CHAT, chat(stream=stream)))
        await gate.struck.wait()
        router.process.send_signal(signal.SIGTERM)
        await no_longer_ready(router)
        assert router.process.returncode is None
        gate.release()
        reply = await running
        assert reply.status == 200
        assert not stream or reply.events[-1] == "[DONE]"
        assert await router.end() == 0


async def no_longer_ready(router: RouterProcess) -> None:
    """Refused or 503: either way a load balancer sends nothing more."""
    async with asyncio.timeout(5):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while (await router.request("GET", "/readiness")).status == 200:
                await asyncio.sleep(0.02)


async def test_sigterm_gives_up_after_its_grace_period() -> None:
    flags = ["--shutdown-grace-period-secs", "0.5"]
    async with cluster(prefill=1, decode=1, start=False) as c, router_process(*c.flags(), *flags) as router:
        await router.ready()
        gate = Gate()
        c.decode[0].script(gate)
        async with await Link.open(router.url) as link:
            await link.send("POST", CHAT, chat())
            await gate.struck.wait()
            assert await router.end(timeout_s=10) == 0
            await c.decode[0].requests[0].ended.wait()
            assert c.decode[0].requests[0].rid in c.decode[0].aborts, "what is cut short is aborted on the workers"
