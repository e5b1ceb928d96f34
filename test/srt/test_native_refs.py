"""Prefill and decode serve references to encoded items exactly as one server serves the images themselves.

Decode gets nothing but references in every test here, so it cannot see a pixel.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from client import answer_of, ask, assert_same
from cluster import Cluster, Server
from native import Legs, post_chat, refer, with_references
from pictures import chat, data_uri, image_part, picture
from PIL import Image

from sgl_epd.protocol.reference import SCHEME, to_url

ERROR_WITHIN_S = 20.0
DEAD = "http://127.0.0.1:9"
SIZES = [(112, 112), (168, 112), (84, 196), (224, 224)]


def images(first: int, count: int) -> list[Image.Image]:
    return [picture(first + index, *SIZES[index % 4]) for index in range(count)]


CASES: dict[str, list[Image.Image]] = {
    "one image": images(300, 1),
    "two images": images(310, 2),
    "two images swapped": images(310, 2)[::-1],
    "three images of one size": [picture(seed) for seed in (315, 316, 317)],
    "three images": images(320, 3),
    "four images": images(330, 4),
    "four images in another order": [images(330, 4)[index] for index in (2, 0, 3, 1)],
    "the same image twice": images(340, 1) * 2,
    "the same image around another": [*images(350, 2), images(350, 1)[0]],
}


@pytest.fixture
def legs(cluster: Cluster) -> Iterator[Legs]:
    it = Legs(cluster)
    yield it
    it.pool.shutdown()


@pytest.fixture
def encoders(cluster: Cluster) -> list[Server]:
    return [cluster.servers["encode-0"], cluster.servers["encode-1"]]


def serve(legs: Legs, encoders: list[Server], body: dict[str, Any], pictures: list[Image.Image]) -> Any:
    """Items go to the encoders in turn, the last one first; returns the two legs' answers."""
    placed = [(encoders[index % 2], image) for index, image in enumerate(pictures)]
    refs = [refer(encoder, image) for encoder, image in placed]
    work = list(zip(placed, refs, strict=True))[::-1]
    encodes = [legs.encode(encoder, ref, image) for (encoder, image), ref in work]
    answers = legs.ask(with_references(body, refs))
    assert [encode.result(10).status_code for encode in encodes] == [200] * len(encodes)
    return answers


@pytest.mark.parametrize("case", CASES)
def test_same_answer_as_one_server(cluster: Cluster, legs: Legs, encoders: list[Server], case: str) -> None:
    body = chat("What is in the picture?", CASES[case])
    expected = ask(cluster.servers["mixed"].url, body)
    _, decoded = serve(legs, encoders, body, CASES[case])
    assert_same(answer_of(decoded), expected)


def test_one_item_in_two_places(cluster: Cluster, legs: Legs, encoders: list[Server]) -> None:
    """One encode, one transfer, two images in the prompt."""
    body = chat("What is in the picture?", [picture(360), picture(360)])
    ref = refer(encoders[0], picture(360))
    encode = legs.encode(encoders[0], ref, picture(360))
    _, decoded = legs.ask(with_references(body, [ref, ref]))
    assert_same(answer_of(decoded), ask(cluster.servers["mixed"].url, body))
    assert encode.result(10).status_code == 200


def test_a_repeated_image_hits_the_prefix_cache(legs: Legs, encoders: list[Server]) -> None:
    """By its key: another item, from another encoder, with the same content. And not for another image of its size."""
    shots = [picture(370), picture(370), picture(371)]
    cached, lengths, texts = [], [], []
    for encoder, image in zip([encoders[0], encoders[1], encoders[0]], shots, strict=True):
        ref = refer(encoder, image)
        encode = legs.encode(encoder, ref, image)
        prefilled, decoded = legs.ask(with_references(chat("What is in the picture?", [image]), [ref]))
        assert encode.result(10).status_code == 200
        usage = prefilled.json()["usage"]
        cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
        lengths.append(usage["prompt_tokens"])
        texts.append(answer_of(decoded).logprobs)
    assert cached[1] == lengths[1] - 1
    assert cached[0] == cached[2] < lengths[0] - ref.num_tokens
    assert texts[0] == pytest.approx(texts[1], abs=2e-5)


def wrong_bodies(encoder: Server) -> dict[str, dict[str, Any]]:
    ref = refer(encoder, picture(380))
    body = chat("What is it?", [picture(380)])

    def changed(**changes: Any) -> dict[str, Any]:
        return with_references(body, [type(ref)(**{**{n: getattr(ref, n) for n in ref.__struct_fields__}, **changes})])

    def url(text: str) -> dict[str, Any]:
        parts = [image_part(text), {"type": "text", "text": "What is it?"}]
        return {**body, "messages": [{"role": "user", "content": parts}]}

    both = [image_part(to_url(ref)), image_part(data_uri(picture(380))), {"type": "text", "text": "Which?"}]
    return {
        "cut": url(to_url(ref)[:-9]),
        "empty": url(SCHEME),
        "not base64": url(SCHEME + "%%%"),
        "not a reference": url(SCHEME + "aGVsbG8"),
        "an address with a path": changed(encoder=encoder.url + "/flush_cache?"),
        "tokens that the grid does not make": changed(num_tokens=ref.num_tokens + 1),
        "a giant grid": changed(grid=(1, 2_000_000_000, 2_000_000_000)),
        "more tokens than fit": changed(grid=(1, 2000, 2000), num_tokens=1_000_000),
        "a video": changed(modality="video"),
        "an id that upstream would cut": changed(item_id="a_local_part_0"),
        "with an image": {**body, "messages": [{"role": "user", "content": both}]},
    }


def test_what_is_no_reference_is_refused(cluster: Cluster, encoders: list[Server]) -> None:
    for name, body in wrong_bodies(encoders[0]).items():
        for leg in ("prefill", "decode"):
            reply = post_chat(cluster.servers[leg], _with_room(cluster, body))
            assert reply.status_code == 400, (name, leg, reply.status_code, reply.text)


def test_prefill_connects_to_no_address_but_its_encoders(cluster: Cluster, encoders: list[Server]) -> None:
    other = cluster.servers["decode"].url
    body = with_references(chat("What is it?", [picture(381)]), [refer(encoders[0], picture(381), encoder=other)])
    reply = post_chat(cluster.servers["prefill"], _with_room(cluster, body))
    assert reply.status_code == 400
    assert "is no encoder of this worker" in reply.text


def test_a_dead_encoder_is_502_with_the_item(cluster: Cluster, encoders: list[Server]) -> None:
    registry = f"http://127.0.0.1:{cluster.servers['prefill'].encoder_bootstrap_port}"
    ref = refer(encoders[0], picture(382), encoder=DEAD)
    body = _with_room(cluster, with_references(chat("What is it?", [picture(382)]), [ref]))
    httpx.post(f"{registry}/register_encoder_url", json={"url": DEAD}).raise_for_status()
    try:
        reply = post_chat(cluster.servers["prefill"], body)
    finally:
        httpx.request("DELETE", f"{registry}/unregister_encoder_url", json={"url": DEAD}).raise_for_status()
    assert reply.status_code == 502, reply.text
    assert f"item '{ref.item_id}' of {DEAD}: the encoder cannot be reached" in reply.text


def test_an_unknown_item_is_502_and_the_next_request_is_right(
    cluster: Cluster, legs: Legs, encoders: list[Server]
) -> None:
    ref = refer(encoders[0], picture(383))
    body = chat("What is it?", [picture(383)])
    began = time.monotonic()
    reply = post_chat(cluster.servers["prefill"], _with_room(cluster, with_references(body, [ref])))
    assert reply.status_code == 502, reply.text
    assert f"item '{ref.item_id}' of {encoders[0].url}: the encoder does not know it" in reply.text
    assert time.monotonic() - began < ERROR_WITHIN_S
    _, decoded = serve(legs, encoders, body, [picture(383)])
    assert_same(answer_of(decoded), ask(cluster.servers["mixed"].url, body))


def test_an_embedding_that_is_not_what_the_reference_says(cluster: Cluster, legs: Legs, encoders: list[Server]) -> None:
    """The item's id is another image's: nobody gets an answer about it."""
    ref = refer(encoders[0], picture(384))
    encode = legs.encode(encoders[0], ref, picture(385, 224, 224))
    body = _with_room(cluster, with_references(chat("What is it?", [picture(384)]), [ref]))
    reply = post_chat(cluster.servers["prefill"], body)
    assert reply.status_code == 502, reply.text
    assert f"item '{ref.item_id}' of {encoders[0].url}: sent" in reply.text
    assert encode.result(10).status_code == 200


def test_an_abort_ends_the_wait_and_frees_the_item(cluster: Cluster, legs: Legs, encoders: list[Server]) -> None:
    prefill = cluster.servers["prefill"]
    ref = refer(encoders[0], picture(386))
    body = with_references(chat("What is it?", [picture(386)]), [ref])
    rid = secrets.token_hex(16)
    waiting = legs.pool.submit(post_chat, prefill, _with_room(cluster, {**body, "rid": rid}))
    time.sleep(1.0)
    assert not waiting.done()
    httpx.post(f"{prefill.url}/abort_request", json={"rid": rid}).raise_for_status()
    assert waiting.result(5).status_code != 502
    # The same item again: it would be refused if the aborted request still held it.
    encode = legs.encode(encoders[0], ref, picture(386))
    _, decoded = legs.ask(body)
    assert_same(answer_of(decoded), ask(cluster.servers["mixed"].url, chat("What is it?", [picture(386)])))
    assert encode.result(10).status_code == 200


def test_without_the_flag_a_reference_is_no_image(cluster: Cluster) -> None:
    body = chat("What is it?")
    body["messages"][0]["content"].insert(0, image_part(SCHEME + "aGVsbG8"))
    assert post_chat(cluster.servers["mixed"], body).status_code == 400


def _with_room(cluster: Cluster, body: dict[str, Any]) -> dict[str, Any]:
    port = cluster.servers["prefill"].bootstrap_port
    room = secrets.randbits(62)
    return {**body, "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
