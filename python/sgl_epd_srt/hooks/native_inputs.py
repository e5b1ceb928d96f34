"""Prefill and decode take references where they would download, decode and preprocess images.

Upstream: `sglang.srt.managers.multimodal_processor.get_mm_processor` (0.5.23), which makes the processor whose
`process_mm_data_async` the tokenizer manager awaits (`TokenizerManager._tokenize_one_request`, always by keyword). A
request without references reaches that method unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_epd_srt.upstream import expect, wrap


def install(*, waits: bool) -> None:
    """`waits`: this worker needs the embeddings as well as the ids, so it is a prefill worker."""

    def with_references(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        processor = original(*args, **kwargs)
        processor.process_mm_data_async = _accepting(processor, processor.process_mm_data_async, waits=waits)
        return processor

    expect("sglang.srt.managers.tokenizer_manager.TokenizerManager._tokenize_one_request", "e6d36ac90556")
    expect(
        "sglang.srt.multimodal.processors.base_processor.BaseMultimodalProcessor.get_validated_mm_data", "9aa42b2c120b"
    )
    wrap("sglang.srt.managers.multimodal_processor.get_mm_processor", "af2c39d6afdd", with_references)


def _accepting(processor: Any, process: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
    from sgl_epd_srt.native.inputs import build
    from sgl_epd_srt.native.references import references_of
    from sgl_epd_srt.native.waiting import attach

    async def process_mm_data_async(**kwargs: Any) -> Any:
        request = kwargs["request_obj"]
        refs = references_of(request)
        if not refs:
            return await process(**kwargs)
        mm_inputs = build(processor, kwargs["input_text"], refs, kwargs.get("max_req_input_len"))
        if waits:
            attach(mm_inputs, refs)
            request.need_wait_for_mm_inputs = True
        return mm_inputs

    return process_mm_data_async
