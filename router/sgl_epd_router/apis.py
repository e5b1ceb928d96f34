"""How the generation routes differ from one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from sgl_epd_router.body import Buffer, CompletionPeek, GeneratePeek, Peek, is_true, raw_int
from sgl_epd_router.fanout import single_sample_body, single_sample_generate_body
from sgl_epd_router.merge_logprobs import CompletionMerge, MergeOne, merge_generate
from sgl_epd_router.merge_samples import GenerateMerger, OpenAIMerger, SampleMerger
from sgl_epd_router.scan import CHAT, COMPLETION, GENERATE, RESPONSES, Scanner
from sgl_epd_router.stream import error_event, responses_error_event
from sgl_epd_router.verdict import Verdict


def _never(_: Any) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class GenerationApi:
    """One route. The functions take the peek of a request's body."""

    scanner: Scanner
    samples: Callable[[Peek], int]
    """How many samples are asked for (`n`)."""
    single_body: Callable[[Buffer, Peek], bytes]
    """The body that asks for one sample."""
    sample_merger: Callable[[int, str], SampleMerger]
    """From the number of samples and the answer's id."""
    wants_prompt_logprobs: Callable[[Any], bool] = _never
    merge_logprobs: Callable[[], MergeOne] = lambda: merge_generate
    id_field: str = "rid"
    id_prefix: str = ""
    names_worker: bool = False
    prelude: tuple[bytes, ...] = ()
    end_marks: tuple[bytes, ...] = (b"data: [DONE]",)
    error_event: Callable[[Verdict], bytes] = error_event


def _top_level_n(found: Peek) -> int:
    return raw_int(found.n, 1)


class _SamplingParams(msgspec.Struct):
    n: msgspec.Raw = msgspec.Raw(b"")


def _generate_n(found: Peek) -> int:
    """`n` is a sampling parameter; in a batch all prompts have the same (else the worker refuses)."""
    params = found.sampling_params if isinstance(found, GeneratePeek) else msgspec.Raw(b"")
    if not params:
        return 1
    try:
        parsed = msgspec.json.decode(params, type=_SamplingParams | list[_SamplingParams])
    except msgspec.DecodeError:
        return 1
    first = parsed if isinstance(parsed, _SamplingParams) else (parsed or [_SamplingParams()])[0]
    return raw_int(first.n, 1)


def _generate_single(body: Buffer, found: Peek) -> bytes:
    assert isinstance(found, GeneratePeek)
    return single_sample_generate_body(body, found.sampling_params)


def _generate_prompt_logprobs(found: Any) -> bool:
    """`return_logprob` may be a list in a batch; then each item may want some."""
    if not isinstance(found, GeneratePeek):
        return False
    return b"true" in bytes(found.return_logprob)


def _completion_prompt_logprobs(found: Any) -> bool:
    return isinstance(found, CompletionPeek) and is_true(found.echo) and bytes(found.logprobs) not in (b"", b"null")


def _plain_body(body: Buffer, _: Peek) -> bytes:
    return single_sample_body(body)


CHAT_API = GenerationApi(CHAT, _top_level_n, _plain_body, OpenAIMerger)
COMPLETION_API = GenerationApi(
    COMPLETION,
    _top_level_n,
    _plain_body,
    OpenAIMerger,
    wants_prompt_logprobs=_completion_prompt_logprobs,
    merge_logprobs=CompletionMerge,
)
GENERATE_API = GenerationApi(
    GENERATE,
    _generate_n,
    _generate_single,
    lambda n, _: GenerateMerger(n),
    wants_prompt_logprobs=_generate_prompt_logprobs,
)
RESPONSES_API = GenerationApi(
    RESPONSES,
    lambda _: 1,
    _plain_body,
    OpenAIMerger,
    id_field="request_id",
    id_prefix="resp_",
    names_worker=True,
    prelude=(b"event: response.created\n", b"event: response.in_progress\n"),
    end_marks=tuple([b"event: response.%b\n" % end for end in (b"completed", b"incomplete", b"failed", b"cancelled")]),
    error_event=responses_error_event,
)
