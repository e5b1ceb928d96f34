"""The receiver of a prefill worker whose requests may carry references.

Chosen by `SGLANG_ENCODER_MM_RECEIVER_MODE` from `sglang.srt.disaggregation.encoder.receiver._MM_RECEIVER_BY_MODE`
(0.5.23), once in the tokenizer process and once in each scheduler rank. Requests with images go upstream's way.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from sglang.srt.disaggregation.encoder.receiver import MMReceiverHTTP, WaitingZmqRequest

from sgl_epd_srt.native.references import check_encoders, references_of
from sgl_epd_srt.native.waiting import WaitingReferences, is_attached


class NativeReceiver(MMReceiverHTTP):  # type: ignore[misc]
    def send_encode_request(
        self, obj: Any, time_stats_json: str | None = None, on_dispatch_error: Any = None
    ) -> threading.Event | None:
        """Tokenizer process: refuse what this worker will not fetch; there is nothing to dispatch for references.

        Raises `ValueError`, which the client gets as 400.
        """
        refs = references_of(obj)
        if not refs:
            ready: threading.Event | None = super().send_encode_request(obj, time_stats_json, on_dispatch_error)
            return ready
        if not obj.is_single:
            raise ValueError("references go with one prompt and one sample a request")
        check_encoders(refs, {*self.encode_urls})
        # The processor shall run, on references alone; `hooks/native_inputs.py` then tells the scheduler to wait.
        obj.need_wait_for_mm_inputs = False
        return None

    def process_waiting_requests(self, recv_reqs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        ready, aborted = self._process_waiting_requests(
            recv_reqs,
            self._waiting,
            embedding_pool=self.embedding_pool,
            registration_runner=self.registration_runner,
        )
        self._forget_ended()
        return ready, aborted

    def _waiting(self, **kwargs: Any) -> Any:
        if is_attached(kwargs["recv_req"]):
            # Upstream finds the request to which a frame belongs by its id in this map.
            # The context is passed because upstream would make one for each request, and never use it.
            kwargs["zmq_context"] = self.scheduler_context
            return WaitingReferences(by_item=self.waiting_by_rid, **kwargs)
        return WaitingZmqRequest(**kwargs)

    def _forget_ended(self) -> None:
        alive = {id(waiting) for waiting in self.waiting_list}
        for waiting in list(self.waiting_by_rid.values()):
            if isinstance(waiting, WaitingReferences) and id(waiting) not in alive:
                waiting.forget()
