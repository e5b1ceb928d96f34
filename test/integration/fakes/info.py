"""The routes of a fake worker that tell about it: models, server, load, tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import answers
from .wire import Request

if TYPE_CHECKING:
    from .worker import FakeWorker

Route = Callable[[Request], Any]


def info_routes(worker: FakeWorker) -> dict[str, Route]:
    """Path -> function from the request to the JSON answer."""
    return {
        "/v1/models": lambda _: _models(),
        "/model_info": lambda _: _model_info(worker),
        "/get_model_info": lambda _: _model_info(worker),
        "/server_info": lambda _: _server_info(worker),
        "/get_server_info": lambda _: _server_info(worker),
        "/v1/loads": lambda _: _loads(worker),
        "/tokenize": lambda request: _tokenize(request),
        "/v1/tokenize": lambda request: _tokenize(request),
        "/detokenize": lambda request: {"text": "".join(map(chr, request.json()["tokens"]))},
        "/v1/detokenize": lambda request: {"text": "".join(map(chr, request.json()["tokens"]))},
        "/v1/embeddings": lambda request: _embeddings(request),
    }


def _mode(worker: FakeWorker) -> str:
    return "null" if worker.role == "regular" else worker.role


def _models() -> dict[str, Any]:
    card = {"id": answers.MODEL, "object": "model", "created": answers.CREATED, "owned_by": "sglang"}
    return {"object": "list", "data": [{**card, "root": answers.MODEL, "max_model_len": 32768}]}


def _model_info(worker: FakeWorker) -> dict[str, Any]:
    return {
        "model_path": f"/models/{answers.MODEL}",
        "served_model_name": answers.MODEL,
        "tokenizer_path": f"/models/{answers.MODEL}",
        "is_generation": True,
        "disaggregation_mode": _mode(worker),
        "has_image_understanding": True,
    }


def _server_info(worker: FakeWorker) -> dict[str, Any]:
    return {
        "model_path": f"/models/{answers.MODEL}",
        "served_model_name": answers.MODEL,
        "disaggregation_mode": _mode(worker),
        "disaggregation_bootstrap_port": worker.bootstrap_port,
        "encoder_bootstrap_port": worker.encoders.port,
        "api_key": worker.api_key,
        "max_running_requests": 256,
        "version": "0.5.23",
        "internal_states": [{"disaggregation_mode": _mode(worker), "last_gen_throughput": 0.0}],
        "fake_name": worker.name,
    }


def _loads(worker: FakeWorker) -> dict[str, Any]:
    load = {
        "timestamp": 0.0,
        "dp_rank": 0,
        "num_running_reqs": len(worker.live),
        "num_waiting_reqs": 0,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": 0,
        "num_total_tokens": 0,
        "max_total_num_tokens": 100000,
        "max_running_requests": 256,
        "token_usage": 0.0,
        "disaggregation": {"mode": _mode(worker)},
        **worker.extra_load,
    }
    return {"timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "num_accelerators": 1, "loads": [load]}


def _tokenize(request: Request) -> dict[str, Any]:
    prompt = request.json().get("prompt", "")
    ids = [ord(letter) for letter in prompt]
    return {"tokens": ids, "count": len(ids), "max_model_len": 32768}


def _embeddings(request: Request) -> dict[str, Any]:
    body = request.json()
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": i, "embedding": [float(len(text))]} for i, text in enumerate(inputs)]
    return {"object": "list", "data": data, "model": answers.MODEL, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
