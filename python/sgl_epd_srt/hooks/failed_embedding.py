"""A request whose image could not be encoded must end alone, not take the prefill scheduler with it.

Upstream: `sglang.srt.disaggregation.encoder.receiver.MMReceiverBase.create_req` (0.5.23). It builds the request that
carries the encoder's error to the client, from a message whose `input_ids` are still None, since they are only known
once the embeddings are there. `OutputStreamer` then takes their length, and the `TypeError` ends the scheduler: one
broken image, no prefill worker. An empty prompt says the same and has a length.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from sgl_epd_srt.upstream import wrap


def install() -> None:
    wrap("sglang.srt.disaggregation.encoder.receiver.MMReceiverBase.create_req", "b68094546152", _with_input_ids)


def _with_input_ids(original: Callable[..., Any], receiver: Any, recv_req: Any) -> Any:
    if recv_req.input_ids is None:
        recv_req.input_ids = array("q")
    return original(receiver, recv_req)
