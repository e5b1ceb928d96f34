"""The servers that all tests with the real engine share, and the skip where SGLang is not installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

HERE = Path(__file__).parent
# SGLang answers some bad input with a 500. Five retries of each on the only prefill worker would open its breaker.
FEW_RETRIES = ("--retry-max-retries", "1")
DETERMINISTIC = "--enable-deterministic-inference"  # SGLang honours a request's `seed` only in this mode


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("sglang") is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("srt")
            if missing:
                item.add_marker(pytest.mark.skip(reason="SGLang is not installed here"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`mixed` is the yardstick; `encode-0`, `encode-1`, `prefill`, `decode` and `router` are what is tested.

    Prefill and decode take references too (test_native_refs.py); all other tests show that images fare as before.
    """
    from sgl_epd.demo import model_path

    os.environ["SGL_EPD_REFERENCE_TIMEOUT_S"] = "8"
    it = Cluster(os.environ.get("SGL_EPD_TEST_MODEL") or str(model_path()), tmp_path_factory.mktemp("logs"))
    try:
        it.worker("mixed", "mixed", DETERMINISTIC)
        encoders = [it.worker(f"encode-{index}", "encode") for index in range(2)]
        prefill = it.prefill("prefill", encoders, DETERMINISTIC, "--native-refs", "--enable-cache-report")
        decode = it.worker("decode", "decode", DETERMINISTIC, "--native-refs")
        pools = ["--prefill", prefill.url, str(prefill.bootstrap_port), "--decode", decode.url]
        urls = [flag for encoder in encoders for flag in ("--encode", encoder.url)]
        it.router("router", "--epd-disaggregation", *FEW_RETRIES, *urls, *pools)
        it.wait_ready()
        yield it
    finally:
        it.close()
