"""Encode, prefill and decode workers share one GPU and answer what one server on it answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client import ask
from cluster import Cluster

from sgl_epd.demo import model_path
from sgl_epd.demo.samples import sample

SMALL = ("--mem-fraction-static", "0.1", "--max-total-tokens", "16384")


@pytest.fixture(scope="module")
def gpu_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    it = Cluster(str(model_path()), tmp_path_factory.mktemp("gpu-logs"))
    try:
        it.worker("mixed", "mixed", *SMALL)
        encoder = it.worker("encode", "encode")
        prefill = it.prefill("prefill", [encoder], *SMALL)
        decode = it.worker("decode", "decode", *SMALL)
        pools = ["--prefill", prefill.url, str(prefill.bootstrap_port), "--decode", decode.url]
        it.router("router", "--epd-disaggregation", "--encode", encoder.url, *pools)
        it.wait_ready()
        yield it
    finally:
        it.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["number", "shapes", "two_images", "three_images", "text"])
def test_same_text_as_one_server(gpu_cluster: Cluster, kind: str) -> None:
    body = {"model": "demo", "messages": sample(kind, 5).messages(), "temperature": 0, "max_tokens": 48}
    found = ask(gpu_cluster.servers["router"].url, body)
    expected = ask(gpu_cluster.servers["mixed"].url, body)
    assert found.text == expected.text
    assert found.logprobs == pytest.approx(expected.logprobs, abs=0.05)
