"""The router's part of the native path, by hand: items encoded by stock encode workers, bodies with references, both
legs of a request sent."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import zmq
from cluster import Cluster, Server
from pictures import data_uri, image_part
from PIL import Image

from sgl_epd.protocol.items import EmbeddingFormat, Modality
from sgl_epd.protocol.reference import Reference, to_url

TIMEOUT_S = 60.0


class Metadata:
    """Stands in for upstream's `EmbeddingData`, so that a test process need not import all of SGLang."""

    grid_dim: Any
    shape: list[int]
    dtype: Any
    error_msg: str | None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("sglang."):
            return Metadata if name == "EmbeddingData" else int
        return super().find_class(module, name)


def measure(encoder: Server, image: Image.Image) -> Metadata:
    """Has the image encoded and sent here, for its grid."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        post_encode(encoder, secrets.token_hex(8), image, port=[port]).raise_for_status()
        assert socket.poll(10_000), "no embedding came"
        found = _Unpickler(io.BytesIO(socket.recv_multipart()[0])).load()
    assert isinstance(found, Metadata)
    return found


def post_encode(encoder: Server, item_id: str, image: Image.Image, port: list[int] | None = None) -> httpx.Response:
    """Answered when the embedding has been delivered; without `port`, to whoever asks for it."""
    body = {
        "req_id": item_id,
        "modality": "IMAGE",
        "mm_items": [data_uri(image)],
        "num_parts": 1,
        "part_idx": 0,
        "prefill_host": "127.0.0.1",
        "embedding_port": port,
    }
    return httpx.post(f"{encoder.url}/encode", json=body, timeout=TIMEOUT_S, trust_env=False)


def refer(at: Server, image: Image.Image, **changes: Any) -> Reference:
    """A reference to an item that is not yet being encoded."""
    meta = measure(at, image)
    fields: dict[str, Any] = {
        "encoder": at.url,
        "item_id": secrets.token_hex(8),
        "key": hashlib.sha256(image.tobytes()).digest()[:16],
        "modality": Modality.IMAGE,
        "grid": tuple(int(size) for size in meta.grid_dim.flatten().tolist()),
        "num_tokens": meta.shape[0],
        "format": EmbeddingFormat(meta.shape[1], str(meta.dtype).removeprefix("torch.")),
    }
    return Reference(**{**fields, **changes})


def with_references(body: dict[str, Any], refs: Sequence[Reference]) -> dict[str, Any]:
    """The chat body with references in the places of its images."""
    (message,) = body["messages"]
    texts = [part for part in message["content"] if part["type"] == "text"]
    content = [*(image_part(to_url(ref)) for ref in refs), *texts]
    return {**body, "messages": [{**message, "content": content}]}


class Legs:
    """Both legs of one request, and the encode requests behind it, at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.prefill, self.decode = cluster.servers["prefill"], cluster.servers["decode"]
        self.pool = ThreadPoolExecutor(16)

    def encode(self, encoder: Server, ref: Reference, image: Image.Image) -> Future[httpx.Response]:
        return self.pool.submit(post_encode, encoder, ref.item_id, image)

    def ask(self, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
        """Prefill's and decode's answers."""
        room = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": random.getrandbits(62),
        }
        sent = [self.pool.submit(post_chat, server, {**body, **room}) for server in (self.prefill, self.decode)]
        first, second = (leg.result(TIMEOUT_S) for leg in sent)
        return first, second


def post_chat(server: Server, body: dict[str, Any]) -> httpx.Response:
    body = {**body, "logprobs": True, "top_logprobs": 5}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S, trust_env=False)
