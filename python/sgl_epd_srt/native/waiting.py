"""A request on a prefill rank that waits for the embeddings to which its images refer.

Builds on `sglang.srt.disaggregation.encoder.receiver.WaitingZmqRequest` (0.5.23): its status, its time-out, its
registration thread and its failure path stay. New is that ids and positions are there already, and that an embedding is
asked for by item, at the encoder that the item's reference names, and put where it belongs whenever it comes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from array import array
from collections.abc import MutableMapping, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
from sglang.srt.disaggregation.encoder.receiver import (
    EmbeddingData,
    WaitingMMRequestStatus,
    WaitingZmqRequest,
)
from sglang.srt.utils.common import safe_pickle_loads
from sglang.srt.utils.network import NetworkAddress

from sgl_epd.errors import UpstreamError
from sgl_epd.protocol.reference import Reference, from_url, to_url

logger = logging.getLogger(__name__)

TIMEOUT_ENV = "SGL_EPD_REFERENCE_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 60.0
_FIELD = "epd_reference"
"""In an item's `model_specific_data`, which no client can write to: so only what the tokenizer process has checked is
ever connected to."""


def attach(mm_inputs: Any, refs: Sequence[Reference]) -> None:
    """Tokenizer process: send the references along with the items to which they belong."""
    for item, ref in zip(mm_inputs.mm_items, refs, strict=True):
        item.set(_FIELD, to_url(ref))


def is_attached(recv_req: Any) -> bool:
    items = recv_req.mm_inputs.mm_items if recv_req.mm_inputs is not None else []
    return any(_FIELD in item.model_specific_data for item in items)


class WaitingReferences(WaitingZmqRequest):  # type: ignore[misc]
    """`by_item` is the receiver's map from the ids that frames carry to the requests that wait for them."""

    def __init__(self, *, by_item: MutableMapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.status: WaitingMMRequestStatus
        self._by_item = by_item
        self._missing: dict[str, tuple[Reference, list[Any]]] = {}
        for item in self.recv_req.mm_inputs.mm_items:
            ref = from_url(item.model_specific_data.pop(_FIELD))
            self._missing.setdefault(ref.item_id, (ref, []))[1].append(item)
        self._expected = tuple(self._missing)

    def send_encode_request(self) -> None:
        """Ask the encoders for the items; their answers come as frames on the shared socket."""
        taken = [item_id for item_id in self._expected if item_id in self._by_item]
        if taken:
            self._fail_and_release(f"item {taken[0]!r} is already awaited here", int(HTTPStatus.BAD_REQUEST))
            return
        self._by_item.update(dict.fromkeys(self._expected, self))
        refs = [ref for ref, _ in self._missing.values()]
        receive_url = NetworkAddress(self.host_name, self.embedding_port).to_host_port_str()
        self._start_registration(_register_all(refs, receive_url, self.receive_count))

    def forget(self) -> None:
        """Take the items out of the receiver's map: frames that still come are dropped."""
        for item_id in self._expected:
            if self._by_item.get(item_id) is self:
                del self._by_item[item_id]

    def _on_registration_done(self, future: Any) -> None:
        if future.cancelled() or future.exception() is None:
            return
        error = future.exception()
        status = error.status if isinstance(error, UpstreamError) else int(HTTPStatus.INTERNAL_SERVER_ERROR)
        with self.registration_lock:
            self.registration_error = (str(error), status)

    def consume_parts(self, parts: Sequence[Any]) -> None:
        """One message from an encoder: the embedding of an item, or why there is none."""
        if self.status != WaitingMMRequestStatus.PENDING:
            return
        data = safe_pickle_loads(parts[0])
        found = self._missing.get(data.req_id) if isinstance(data, EmbeddingData) else None
        if found is None:
            return  # a second copy of an item that is there already
        ref, items = found
        try:
            problem = _problem(data, parts, ref)
        except (AttributeError, TypeError) as error:
            # Whatever a pickle of this class can hold: it may end this request, but not the scheduler's loop.
            problem = (f"sent a malformed message ({error})", int(HTTPStatus.BAD_GATEWAY))
        if problem is not None:
            message, status = problem
            self._fail_and_release(f"item {ref.item_id!r} of {ref.encoder}: {message}", status)
            return
        self._extract_embedding_from_buffer(data, parts)
        self._place(ref, items, data.embedding)

    def _place(self, ref: Reference, items: Sequence[Any], embedding: Any) -> None:
        for item in items:
            item.precomputed_embeddings = embedding
        del self._missing[ref.item_id]
        if not self._missing:
            self.recv_req.input_ids = array("q", self.recv_req.mm_inputs.input_ids)
            self.status = WaitingMMRequestStatus.SUCCESS


def _problem(data: Any, parts: Sequence[Any], ref: Reference) -> tuple[str, int] | None:
    """Why a message is not the embedding that `ref` announces, and the status for the client; None if it is."""
    if data.error_msg is not None:
        known = isinstance(data.error_code, int) and HTTPStatus.BAD_REQUEST <= data.error_code < 600
        return str(data.error_msg), data.error_code if known else int(HTTPStatus.BAD_GATEWAY)
    shape, dtype = tuple(data.shape), str(data.dtype).removeprefix("torch.")
    if shape != (ref.num_tokens, ref.format.dim) or dtype != ref.format.dtype:
        wanted = f"{(ref.num_tokens, ref.format.dim)} of {ref.format.dtype}"
        return f"sent {shape} of {dtype}, not {wanted}", int(HTTPStatus.BAD_GATEWAY)
    nbytes = ref.num_tokens * ref.format.row_bytes
    if len(parts) != 2 or len(parts[1]) != nbytes:
        return f"sent frames of another size than the {nbytes} bytes announced", int(HTTPStatus.BAD_GATEWAY)
    return None


async def _register_all(refs: Sequence[Reference], receive_url: str, receive_count: int) -> None:
    """Tell the encoder of each item where to send it. Raises `UpstreamError` that names the first item that failed."""
    timeout = aiohttp.ClientTimeout(total=float(os.environ.get(TIMEOUT_ENV, DEFAULT_TIMEOUT_S)))
    async with aiohttp.ClientSession(timeout=timeout) as session:
        calls = [asyncio.ensure_future(_register(session, ref, receive_url, receive_count)) for ref in refs]
        try:
            await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()


async def _register(session: aiohttp.ClientSession, ref: Reference, receive_url: str, receive_count: int) -> None:
    body = {
        "req_id": ref.item_id,
        "receive_count": receive_count,
        "receive_url": receive_url,
        "modality": ref.modality.upper(),
    }
    where = f"item {ref.item_id!r} of {ref.encoder}"
    try:
        async with session.post(f"{ref.encoder}/scheduler_receive_url", json=body, allow_redirects=False) as reply:
            if reply.status != HTTPStatus.OK:
                raise UpstreamError(f"{where}: the encoder answered {reply.status} to the request for it")
    except TimeoutError as error:
        raise UpstreamError(f"{where}: the encoder does not know it") from error
    except aiohttp.ClientError as error:
        raise UpstreamError(f"{where}: the encoder cannot be reached ({type(error).__name__})") from error
