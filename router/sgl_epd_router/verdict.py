"""What a leg's answer means: for the client, for the worker's record, and for trying again.

A stock SGLang worker reports failures in three ways, all of which end up here: an HTTP status; a 200 whose first event
is `{"error": {..., "code": 500}}` (OpenAI routes, streamed); a 200 with an event whose `finish_reason` is an abort with
a `status_code` (`/generate`, streamed). See `sglang/srt/entrypoints/openai/serving_chat.py:_generate_chat_stream` and
`managers/tokenizer_manager.py:_handle_abort_finish_reason` in 0.5.23.
"""

from __future__ import annotations

import dataclasses
import re

import msgspec

from sgl_epd.errors import DisconnectedError, RequestError, TransportError, UpstreamError
from sgl_epd.net.headers import RawHeaders, get_header
from sgl_epd_router.worker import Outcome

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
"""As in SGLang's gateway. What nobody answers better goes to the client as it is."""
_JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]
_DATA_LINE = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """`OK`, or a failure with the answer that the client gets if nobody takes over."""

    outcome: Outcome
    status: int = 200
    headers: RawHeaders = dataclasses.field(default_factory=list)
    body: bytes = b""
    retryable: bool = False
    died: bool = False
    """The worker vanished after it had the request: perhaps because of the request."""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def retry_after_s(self) -> float | None:
        value = get_header(self.headers, b"retry-after") or b""
        return float(value) if value.isdigit() else None


OK = Verdict(Outcome.OK)


def outcome_of_status(status: int) -> Outcome:
    """Only failures count against a worker; 429 and 503 say that it is busy, other 4xx that the client erred."""
    if status < 400:
        return Outcome.OK
    if status in (429, 503):
        return Outcome.BACKPRESSURE
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.FAILURE


def of_status(status: int, headers: RawHeaders, body: bytes) -> Verdict:
    """A whole answer with an HTTP error status: it goes to the client unchanged unless another worker does better."""
    return Verdict(outcome_of_status(status), status, headers, body, retryable=status in _RETRYABLE)


def of_transport(role: str, error: TransportError) -> Verdict:
    """No HTTP answer, or half of one. The worker's address stays out of what the client sees."""
    died = isinstance(error, DisconnectedError)
    what = "went away before its answer was complete" if died else "could not be reached or sent garbage"
    return of_error(UpstreamError(f"the {role} worker {what}"), Outcome.FAILURE, retryable=True, died=died)


def of_error(error: RequestError, outcome: Outcome, *, retryable: bool, died: bool = False) -> Verdict:
    body = msgspec.json.encode(error.to_openai())
    return Verdict(outcome, error.status, _JSON_HEADERS, body, retryable=retryable, died=died)


def of_body(role: str, headers: RawHeaders, body: bytes) -> Verdict:
    """A whole 200: an empty or cut-off body is a failure, whatever the status said."""
    text = body.strip()
    if _is_json(headers) and text[:1] + text[-1:] not in (b"{}", b"[]"):
        return of_error(UpstreamError(f"the {role} worker sent no JSON"), Outcome.FAILURE, retryable=True)
    return OK


def of_prefill_body(headers: RawHeaders, body: bytes) -> Verdict:
    """A prefill that was aborted has sent no KV, so decode would wait for it, or go on with garbage."""
    if b'"abort"' in body and _has_abort(body):
        error = UpstreamError("the prefill worker aborted the request")
        return of_error(error, Outcome.CANCELLED, retryable=True)
    return of_body("prefill", headers, body)


def _is_json(headers: RawHeaders) -> bool:
    return (get_header(headers, b"content-type") or b"").startswith(b"application/json")


def of_events(role: str, events: bytes) -> Verdict:
    """Complete events of a stream: OK unless one of them reports a failure."""
    if b'"error"' not in events and b'"abort"' not in events:
        return OK
    for line in _DATA_LINE.findall(events):
        verdict = _of_event(role, line)
        if not verdict.ok:
            return verdict
    return OK


class _Error(msgspec.Struct):
    code: int | str | None = None


class _Reason(msgspec.Struct):
    type: str = ""
    message: str | None = None
    status_code: int | None = None


class _MetaInfo(msgspec.Struct):
    finish_reason: _Reason | str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"")
    meta_info: _MetaInfo | None = None
    choices: list[_Choice] = []


_EVENT = msgspec.json.Decoder(_Event)
_EVENTS = msgspec.json.Decoder(_Event | list[_Event])


def _of_event(role: str, data: bytes) -> Verdict:
    try:
        event = _EVENT.decode(data)
    except msgspec.DecodeError:
        return OK  # [DONE], and what other APIs stream
    if event.error and bytes(event.error) != b"null":
        status = _error_status(event.error)
        body = b'{"error":%b}' % bytes(event.error)
        return Verdict(outcome_of_status(status), status, _JSON_HEADERS, body, retryable=status in _RETRYABLE)
    reason = event.meta_info.finish_reason if event.meta_info else None
    if isinstance(reason, _Reason) and reason.type == "abort" and (reason.status_code or role == "prefill"):
        return _of_abort(role, reason)
    if role == "prefill" and any(choice.finish_reason == "abort" for choice in event.choices):
        return _of_abort(role, _Reason())
    return OK


def _of_abort(role: str, reason: _Reason) -> Verdict:
    if not reason.status_code:
        error = UpstreamError(f"the {role} worker aborted the request")
        return of_error(error, Outcome.CANCELLED, retryable=True)
    status = reason.status_code
    body = msgspec.json.encode({"error": {"message": reason.message, "type": "aborted", "param": None, "code": status}})
    return Verdict(outcome_of_status(status), status, _JSON_HEADERS, body, retryable=status in _RETRYABLE)


def _error_status(error: msgspec.Raw) -> int:
    try:
        code = msgspec.json.decode(error, type=_Error).code
    except msgspec.DecodeError:
        return 502
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _has_abort(body: bytes) -> bool:
    try:
        found = _EVENTS.decode(body)
    except msgspec.DecodeError:
        return False
    events = found if isinstance(found, list) else [found]
    return any(map(_aborted, events))


def _aborted(event: _Event) -> bool:
    reason = event.meta_info.finish_reason if event.meta_info else None
    if isinstance(reason, _Reason):
        return reason.type == "abort"
    return any(choice.finish_reason == "abort" for choice in event.choices)
