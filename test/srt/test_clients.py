"""What users really run against the router: the openai package, SGLang's own benchmark, curl."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from cluster import Cluster
from pictures import chat, picture

from sgl_epd.demo.samples import sample


@pytest.fixture
def client(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=cluster.servers["router"].url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("kind", ["number", "shapes", "two_images", "three_images", "text"])
def test_openai_package(client: openai.OpenAI, cluster: Cluster, kind: str) -> None:
    """Whole and streamed, the answer is the one that a single server gives."""
    case = sample(kind, seed=3)
    fields = {"model": "demo", "messages": case.messages(), "temperature": 0, "max_tokens": 48}
    single = openai.OpenAI(base_url=cluster.servers["mixed"].url + "/v1", api_key="none", max_retries=0)
    expected = single.chat.completions.create(**fields).choices[0].message.content
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "stop"
    streamed = client.chat.completions.create(**fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == expected


def test_openai_errors_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="demo", messages=[], max_tokens=4)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=4, temperature=-1
        )


def test_models_and_completions(client: openai.OpenAI, cluster: Cluster) -> None:
    assert [model.id for model in client.models.list()] == [cluster.model]
    done = client.completions.create(model="demo", prompt="hello", max_tokens=4, temperature=0)
    assert done.usage is not None and done.usage.completion_tokens <= 4


@pytest.mark.timeout(240)
def test_bench_serving_with_images(cluster: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "bench.jsonl"
    command = [
        sys.executable, "-W", "ignore", "-m", "sglang.bench_serving",
        "--backend", "sglang-oai-chat", "--base-url", cluster.servers["router"].url, "--model", cluster.model,
        "--dataset-name", "image", "--image-count", "2", "--image-resolution", "112x140", "--num-prompts", "6",
        "--random-input-len", "16", "--random-output-len", "8", "--max-concurrency", "3", "--output-file", str(output),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(output.read_text().splitlines()[-1])
    assert result["completed"] == 6


def test_curl_streams(cluster: Cluster, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat("What is it?", [picture(30)], stream=True)))
    command = ["curl", "-sSN", "--max-time", "30", "-H", "content-type: application/json", "-d", f"@{body}"]
    done = subprocess.run(
        [*command, cluster.servers["router"].url + "/v1/chat/completions"], capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, done.stderr
    events = [line for line in done.stdout.splitlines() if line]
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith("data: ") for event in events)
