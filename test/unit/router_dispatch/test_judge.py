"""The decision whether an attempt works, event by event, without a network or a clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from legs_fixtures import CHAT_EVENT, DONE, EVENTS, FakeLeg

from sgl_epd.errors import ConnectError, DisconnectedError, PeerProtocolError
from sgl_epd_router.deadlines import Deadlines
from sgl_epd_router.judge import ABORT_GRACE_S, BLAME_S, PREFILL_GRACE_S, Judge
from sgl_epd_router.verdict import Verdict
from sgl_epd_router.worker import Outcome

ANSWER = b'{"id":"x","choices":[{"finish_reason":"stop"}]}'
NOW = 1000.0


class Case:
    """A judge over two fake legs."""

    def __init__(self, *, stream: bool = False, prefill: bool = True, **kwargs: Any) -> None:
        self.d = FakeLeg("decode" if prefill else "regular")
        self.p = FakeLeg("prefill")
        self.judge = Judge(
            self.d,
            self.p if prefill else None,
            Deadlines(total_s=100.0, prefill_s=20.0, first_token_s=50.0),
            now=NOW,
            give_up_at=NOW + 100.0,
            stream=stream,
            **kwargs,
        )

    def verdict(self, after_s: float = 0.0) -> Verdict | None:
        return self.judge.judge(NOW + after_s)


def test_nothing_is_decided_before_anything_has_come() -> None:
    case = Case()
    assert case.verdict() is None
    case.d.status = 200
    assert case.verdict() is None


def test_whole_answers_of_both_legs() -> None:
    case = Case()
    case.p.answers(ANSWER)
    assert case.verdict() is None
    case.d.answers(ANSWER)
    verdict = case.verdict()
    assert verdict is not None and verdict.ok
    assert case.judge.body == ANSWER


def test_an_aggregated_worker_has_no_prefill_to_wait_for() -> None:
    case = Case(prefill=False)
    case.d.answers(ANSWER)
    verdict = case.verdict()
    assert verdict is not None and verdict.ok


def test_the_first_token_waits_for_the_prefill_workers_answer_but_not_for_ever() -> None:
    case = Case(stream=True)
    case.d.streams(CHAT_EVENT)
    assert case.verdict() is None
    assert case.judge.next_deadline() == NOW + PREFILL_GRACE_S
    assert case.verdict(PREFILL_GRACE_S - 0.01) is None
    verdict = case.verdict(PREFILL_GRACE_S)
    assert verdict is not None and verdict.ok


def test_with_prompt_logprobs_it_waits_as_long_as_the_deadlines_allow() -> None:
    case = Case(needs_prefill_answer=True)
    case.d.answers(ANSWER)
    assert case.verdict(PREFILL_GRACE_S * 5) is None
    case.p.answers(ANSWER)
    verdict = case.verdict(PREFILL_GRACE_S * 5)
    assert verdict is not None and verdict.ok
    assert case.judge.prefill_body == ANSWER


@pytest.mark.parametrize("status", [400, 404, 413, 422])
@pytest.mark.parametrize("leg", ["p", "d"])
def test_a_clients_error_is_final_at_once_and_unchanged(leg: str, status: int) -> None:
    case = Case()
    getattr(case, leg).answers(b"its own words", status)
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.status, verdict.body) == (Outcome.CLIENT_ERROR, status, b"its own words")
    assert not verdict.retryable


@pytest.mark.parametrize(
    ("status", "outcome"), [(429, Outcome.BACKPRESSURE), (503, Outcome.BACKPRESSURE), (500, Outcome.FAILURE)]
)
def test_another_legs_error_is_waited_for_a_moment(status: int, outcome: Outcome) -> None:
    case = Case()
    case.d.answers(b"transfer failed", status)
    assert case.verdict() is None
    assert case.judge.next_deadline() == NOW + BLAME_S
    verdict = case.verdict(BLAME_S)
    assert verdict is not None
    assert (verdict.outcome, verdict.status, verdict.retryable) == (outcome, status, True)


def test_the_prefill_workers_error_explains_more() -> None:
    case = Case()
    case.d.answers(b"transfer failed", 500)
    case.verdict()
    case.p.answers(b"prompt too long", 400)
    verdict = case.verdict(0.1)
    assert verdict is not None
    assert (verdict.status, verdict.body) == (400, b"prompt too long")


def test_decodes_client_error_explains_more_than_a_failed_prefill() -> None:
    case = Case()
    case.p.answers(b"oops", 500)
    case.d.answers(b"bad request", 400)
    verdict = case.verdict()
    assert verdict is not None
    assert verdict.status == 400


@pytest.mark.parametrize("leg", ["p", "d"])
def test_a_lost_worker_is_final_at_once(leg: str) -> None:
    case = Case(stream=True)
    getattr(case, leg).error = DisconnectedError("http://10.0.0.1:1 closed the connection")
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.status, verdict.retryable, verdict.died) == (Outcome.FAILURE, 502, True, True)
    assert b"10.0.0.1" not in verdict.body


@pytest.mark.parametrize("stream", [False, True])
def test_a_prefill_worker_that_is_lost_after_decode_has_answered_does_no_harm(stream: bool) -> None:
    case = Case(stream=stream)
    case.p.error = DisconnectedError("gone")
    case.d.streams(CHAT_EVENT) if stream else case.d.answers(ANSWER)
    verdict = case.verdict()
    assert verdict is not None and verdict.ok
    assert case.p.verdict is not None
    assert case.p.verdict.outcome is Outcome.FAILURE


@pytest.mark.parametrize("error", [ConnectError("refused"), PeerProtocolError("garbage")])
def test_an_unreachable_worker_did_not_die_of_the_request(error: ConnectError) -> None:
    case = Case(prefill=False)
    case.d.error = error
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.status, verdict.retryable, verdict.died) == (502, True, False)


def test_an_error_in_the_first_event_becomes_the_status() -> None:
    """SGLang has sent 200 by then."""
    case = Case(stream=True)
    error = {"object": "error", "message": "Decode transfer failed", "type": "INTERNAL_SERVER_ERROR", "code": 500}
    case.p.streams(CHAT_EVENT + DONE, ended=True)
    case.d.streams(b"data: " + json.dumps({"error": error}).encode() + b"\n\n" + DONE, ended=True)
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.status, verdict.outcome, verdict.retryable) == (500, Outcome.FAILURE, True)
    assert json.loads(verdict.body) == {"error": error}


def test_an_abort_in_the_first_generate_event_becomes_the_status() -> None:
    case = Case(stream=True, prefill=False)
    reason = {"type": "abort", "message": "too long", "status_code": 400, "err_type": None}
    case.d.streams(b"data: " + json.dumps({"text": "", "meta_info": {"finish_reason": reason}}).encode() + b"\n\n")
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.status, verdict.outcome) == (400, Outcome.CLIENT_ERROR)
    assert json.loads(verdict.body)["error"]["message"] == "too long"


@pytest.mark.parametrize(
    "body",
    [
        b'{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"Aborted","status_code":null}}}',
        b'{"choices":[{"index":0,"finish_reason":"abort"}]}',
        b'[{"meta_info":{"finish_reason":{"type":"length","length":1}}},{"meta_info":{"finish_reason":{"type":"abort"}}}]',
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_prefill_is_a_failure_though_its_status_is_200(body: bytes, stream: bool) -> None:
    """Row 50 (sglang#30233): decode would make garbage of it."""
    case = Case(stream=stream)
    if stream and not body.startswith(b"["):
        case.p.streams(b"data: " + body + b"\n\n" + DONE, ended=True)
    else:
        case.p.answers(body)
    case.d.streams(CHAT_EVENT)
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.status, verdict.outcome, verdict.retryable) == (502, Outcome.CANCELLED, True)


def test_a_text_about_aborting_is_no_abort() -> None:
    case = Case()
    case.p.answers(b'{"choices":[{"message":{"content":"say \\"abort\\""},"finish_reason":"length"}],"x":"abort"}')
    case.d.answers(ANSWER)
    verdict = case.verdict()
    assert verdict is not None and verdict.ok


@pytest.mark.parametrize("body", [b"", b"   ", b'{"id":"x","choices":[', b"<html>busy</html>"])
def test_a_200_without_json_is_a_failure(body: bytes) -> None:
    """Row 31: HTTP 200 with an empty body when decode fails."""
    case = Case(prefill=False)
    case.d.answers(body)
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.status, verdict.retryable) == (Outcome.FAILURE, 502, True)


def test_a_stream_without_events_is_a_failure() -> None:
    case = Case(stream=True, prefill=False)
    case.d.streams(b"data: {", ended=True)
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.retryable) == (Outcome.FAILURE, True)


def test_half_an_event_is_waited_for() -> None:
    case = Case(stream=True, prefill=False)
    case.d.streams(CHAT_EVENT[:20])
    assert case.verdict() is None
    case.d.streams(CHAT_EVENT[20:] + b"data: {")
    verdict = case.verdict()
    assert verdict is not None and verdict.ok
    assert (case.judge.first_events, case.judge.splitter.tail) == (CHAT_EVENT, b"data: {")


def test_events_that_only_announce_an_answer_do_not_count() -> None:
    prelude = (b"event: response.created\n", b"event: response.in_progress\n")
    case = Case(stream=True, prefill=False, prelude=prelude)
    case.d.streams(b"event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n")
    assert case.verdict() is None
    case.d.streams(b"event: response.output_item.added\ndata: {}\n\n")
    verdict = case.verdict()
    assert verdict is not None and verdict.ok
    assert case.judge.first_events.count(b"event:") == 3


def test_redirects_are_not_followed() -> None:
    case = Case(prefill=False)
    case.d.answers(b"", 307)
    verdict = case.verdict()
    assert verdict is not None
    assert (verdict.status, verdict.outcome) == (502, Outcome.FAILURE)


@pytest.mark.parametrize(("after_s", "leg"), [(20.0, "p"), (50.0, "d")])
def test_stages_have_deadlines_and_their_workers_are_blamed(after_s: float, leg: str) -> None:
    case = Case(stream=True)
    if leg == "d":
        case.p.streams(CHAT_EVENT + DONE, ended=True)
    assert case.verdict(after_s - 0.1) is None
    assert case.judge.next_deadline() == NOW + after_s
    verdict = case.verdict(after_s)
    assert verdict is not None
    assert (verdict.status, verdict.outcome, verdict.retryable) == (504, Outcome.FAILURE, True)
    assert getattr(case, leg).verdict is verdict


def test_the_whole_request_has_a_deadline_that_blames_nobody() -> None:
    case = Case()
    case.p.answers(ANSWER)
    assert case.verdict(99.9) is None
    verdict = case.verdict(100.0)
    assert verdict is not None
    assert (verdict.status, verdict.outcome, verdict.retryable) == (504, Outcome.CANCELLED, False)


def test_an_abort_that_was_asked_for_is_not_a_failure() -> None:
    case = Case()
    case.judge.abort_requested_at = NOW
    aborted = b'{"choices":[{"finish_reason":"abort"}]}'
    case.p.answers(aborted)
    case.d.answers(aborted)
    verdict = case.verdict()
    assert verdict is not None and verdict.ok
    assert case.judge.body == aborted


def test_workers_that_ignore_an_abort_do_not_keep_the_client() -> None:
    case = Case()
    case.judge.abort_requested_at = NOW + 5.0
    assert case.judge.next_deadline() == NOW + 5.0 + ABORT_GRACE_S
    assert case.verdict(5.0 + ABORT_GRACE_S - 0.1) is None
    verdict = case.verdict(5.0 + ABORT_GRACE_S)
    assert verdict is not None
    assert (verdict.ok, verdict.retryable) == (False, False)


actions = st.sampled_from(
    ["p ok", "p 400", "p 500", "p lost", "p abort", "d ok", "d 400", "d 500", "d lost", "d event", "wait"]
)


@given(st.lists(actions, max_size=12))
def test_any_order_of_events_ends_in_one_right_verdict(steps: list[str]) -> None:
    """OK only when decode is fine and prefill has not been seen to fail; and the wait is always bounded."""
    case, now = Case(stream=True), 0.0
    for step in steps:
        leg = case.p if step[0] == "p" else case.d
        if step == "wait":
            now += 1.0
        elif leg.ended or leg.error or leg.status:
            continue
        elif step.endswith("ok"):
            leg.streams(CHAT_EVENT + DONE, ended=True)
        elif step.endswith("event"):
            leg.streams(CHAT_EVENT)
        elif step.endswith("abort"):
            leg.answers(b'{"choices":[{"finish_reason":"abort"}]}')
        elif step.endswith("lost"):
            leg.error = DisconnectedError("gone")
        else:
            leg.answers(b"{}", int(step[2:]))
        verdict = case.verdict(now)
        assert case.judge.next_deadline() > NOW + now or verdict is not None
        if verdict is not None:
            if verdict.ok:
                assert case.d.headers is EVENTS and case.d.status == 200
                assert case.p.verdict is None or case.p.verdict.ok or case.p.error
            else:
                assert verdict.status >= 400
                assert verdict.body
            return
    verdict = case.verdict(100.0)
    assert verdict is not None
