"""A prefill rank's request that waits for its items, message by message, on SGLang's own classes; no server."""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_epd.protocol.items import EmbeddingFormat, Modality
from sgl_epd.protocol.reference import Reference, to_url

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

DIM = 4


def ref(item_id: str, num_tokens: int = 2, **fields: Any) -> Reference:
    return Reference(
        encoder="http://127.0.0.1:9", item_id=item_id, key=bytes(16), modality=Modality.IMAGE, grid=(1, 4, 2),
        num_tokens=num_tokens, format=EmbeddingFormat(DIM, "float32"), **fields,
    )  # fmt: skip


class Runner:
    """Keeps the registration open and runs nothing."""

    def submit(self, coroutine: Any) -> Future[None]:
        coroutine.close()
        self.future: Future[None] = Future()
        return self.future


def waiting(refs: Sequence[Reference], by_item: dict[str, Any], rid: str = "request") -> Any:
    from sglang.srt.managers.schedule_batch import Modality as Kind
    from sglang.srt.managers.schedule_batch import MultimodalDataItem, MultimodalProcessorOutput

    from sgl_epd_srt.native.waiting import WaitingReferences, attach

    items = [MultimodalDataItem(modality=Kind.IMAGE, offsets=[(0, 1)]) for _ in refs]
    inputs = MultimodalProcessorOutput(mm_items=items, input_ids=[1, 2, 3])
    attach(inputs, refs)
    request = SimpleNamespace(rid=rid, mm_inputs=inputs, input_ids=None, num_items_assigned=None)
    it = WaitingReferences(
        by_item=by_item, rid=rid, recv_req=request, mm_processor=None, encoder_urls=[], model_type=None,
        host_name="127.0.0.1", receive_count=1, embedding_port=1, registration_runner=Runner(),
        zmq_context=SimpleNamespace(),
    )  # fmt: skip
    it.send_encode_request()
    return it


def message(item_id: str, rows: int = 2, fill: float = 1.0, **attributes: Any) -> list[bytes]:
    import torch
    from sglang.srt.disaggregation.encoder.receiver import EmbeddingData
    from sglang.srt.managers.schedule_batch import Modality as Kind

    tensor = torch.full((rows, DIM), fill)
    data = EmbeddingData(item_id, 1, 0, None, Kind.IMAGE, embedding=tensor).copy_without_embedding()
    data.dtype = tensor.dtype
    for name, value in attributes.items():
        setattr(data, name, value)
    return [pickle.dumps(data), tensor.numpy().tobytes()]


def rows_of(it: Any) -> list[float]:
    return [float(item.precomputed_embeddings[0, 0]) for item in it.recv_req.mm_inputs.mm_items]


def test_items_find_their_places_in_any_order() -> None:
    it = waiting([ref("a"), ref("b"), ref("a")], {})
    it.consume_parts(message("b", fill=2.0))
    it.consume_parts(message("b", fill=9.0))
    assert it.status == 0
    it.consume_parts(message("a", fill=1.0))
    assert it.status == 1
    assert rows_of(it) == [1.0, 2.0, 1.0]
    assert list(it.recv_req.input_ids) == [1, 2, 3]


@pytest.mark.parametrize(
    ("parts", "status", "text"),
    [
        (lambda: message("a", rows=3), 502, "sent \\(3, 4\\)"),
        (lambda: message("a", shape=None), 502, "malformed"),
        (lambda: message("a", shape=7), 502, "malformed"),
        (lambda: message("a", dtype="float16"), 502, "float16, not"),
        (lambda: message("a")[:1], 502, "another size"),
        (lambda: [message("a")[0], b"short"], 502, "another size"),
        (lambda: message("a", error_msg="broken picture", error_code=400), 400, "broken picture"),
        (lambda: message("a", error_msg="?", error_code="7"), 502, "\\?"),
    ],
)
def test_a_message_that_is_no_embedding_ends_the_request(parts: Any, status: int, text: str) -> None:
    it = waiting([ref("a")], {})
    it.consume_parts(parts())
    assert (it.status, it.error_code) == (-1, status)
    assert it.error_msg.startswith("item 'a' of http://127.0.0.1:9: ")
    assert re.search(text, it.error_msg)
    assert it.registration_future is None


def test_an_item_has_one_request_that_waits_for_it() -> None:
    by_item: dict[str, Any] = {}
    first, second = waiting([ref("a")], by_item, "r1"), waiting([ref("b"), ref("a")], by_item, "r2")
    assert (first.status, second.status, second.error_code) == (0, -1, 400)
    second.forget()
    assert by_item == {"a": first}
    first.forget()
    assert by_item == {}


def test_a_failed_registration_is_502_with_the_item() -> None:
    from sgl_epd.errors import UpstreamError

    it = waiting([ref("a")], {})
    it.registration_runner.future.set_exception(UpstreamError("item 'a' of http://127.0.0.1:9: nobody there"))
    it._try_recv_mm_data()
    assert (it.status, it.error_code) == (-1, 502)
    assert it.error_msg == "item 'a' of http://127.0.0.1:9: nobody there"


def test_an_abort_cancels_the_registration() -> None:
    it = waiting([ref("a")], {})
    it._fail_and_release("Aborted by user", 400)
    assert it.registration_runner.future.cancelled()
    it.consume_parts(message("a"))
    assert it.recv_req.mm_inputs.mm_items[0].precomputed_embeddings is None


def test_references_keep_their_own_keys() -> None:
    """`mm_hashes` of a client would part the items' identities from the ids that were laid out from the references."""
    from sgl_epd_srt.native.references import references_of

    request = SimpleNamespace(image_data=[to_url(ref("a"))], video_data=None, audio_data=None, mm_hashes=None)
    assert references_of(request) == [ref("a")]
    request.mm_hashes = ["ff"]
    with pytest.raises(ValueError, match="mm_hashes"):
        references_of(request)
