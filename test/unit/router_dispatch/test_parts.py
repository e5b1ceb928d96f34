"""The small parts of dispatch: ids, what each leg is sent, event splitting, alarms, routes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import NotFoundError, UpstreamError
from sgl_epd.net.exchange import Exchange
from sgl_epd_router.cancel import RequestIds
from sgl_epd_router.deadlines import NEVER, Alarm
from sgl_epd_router.legs import Waker
from sgl_epd_router.outgoing import AttemptIds, IdRewriter, Outgoing, leg_headers, request_parts, returned_headers
from sgl_epd_router.policies import PolicyConfig, make_policy
from sgl_epd_router.registry import Registry, RegistryConfig
from sgl_epd_router.rooms import RID_LENGTH, new_rid, new_room, worker_mark
from sgl_epd_router.routes import MethodNotAllowedError, Route, RouteTable
from sgl_epd_router.stream import EventSplitter, error_event, responses_error_event
from sgl_epd_router.verdict import of_error, outcome_of_status
from sgl_epd_router.worker import Outcome, Role, Worker, WorkerSpec

P = WorkerSpec("http://[fd00::1]:30000", Role.PREFILL, bootstrap_port=8998)
D = WorkerSpec("http://10.0.0.2:30000", Role.DECODE, api_key="worker-key")


def worker(spec: WorkerSpec) -> Worker:
    registry = Registry({role: make_policy("random", PolicyConfig()) for role in Role}, RegistryConfig())
    return registry.add(spec, now=0.0)


def outgoing(**kwargs: Any) -> Outgoing:
    body = kwargs.pop("body", b'{"model":"m"}')
    return Outgoing("POST", "/generate", b"x-a: 1\r\n", b"Bearer client-key", body, **kwargs)


def test_ids_have_one_length_and_do_not_repeat() -> None:
    assert len({new_rid() for _ in range(1000)}) == 1000
    assert {len(new_rid()) for _ in range(100)} == {RID_LENGTH}
    assert all(0 <= new_room() < 2**63 - 2**20 for _ in range(1000))
    marked = new_rid(worker_mark("decode-h-1"))
    assert len(marked) == RID_LENGTH
    assert marked.endswith(worker_mark("decode-h-1"))
    assert worker_mark("decode-h-1") != worker_mark("decode-h-2")


def test_batch_ids_are_no_prefixes_of_one_another() -> None:
    """SGLang's `/abort_request` matches by prefix."""
    rids = AttemptIds.new(outgoing(batch=1200), worker(D)).rids
    assert len({len(rid) for rid in rids}) == 1
    assert len(set(rids)) == 1200


def test_both_legs_get_the_same_bytes_with_room_and_id() -> None:
    out = outgoing()
    ids = AttemptIds.new(out, worker(D))
    body = json.loads(b"".join(map(bytes, request_parts(out, ids, worker(P)))))
    assert body == {
        "model": "m",
        "rid": ids.rids[0],
        "bootstrap_host": "[fd00::1]",
        "bootstrap_port": 8998,
        "bootstrap_room": ids.room,
    }


def test_a_batch_gets_one_room_that_the_worker_counts_up_and_a_list_of_ids() -> None:
    out = outgoing(batch=2)
    ids = AttemptIds.new(out, worker(D))
    body = json.loads(b"".join(map(bytes, request_parts(out, ids, worker(P)))))
    assert body["rid"] == list(ids.rids)
    assert body["bootstrap_room"] == ids.room


def test_a_worker_without_a_bootstrap_port_uses_decodes_default() -> None:
    out = outgoing()
    spec = WorkerSpec("http://10.0.0.1:30000", Role.PREFILL)
    body = json.loads(b"".join(map(bytes, request_parts(out, AttemptIds.new(out, worker(D)), worker(spec)))))
    assert (body["bootstrap_host"], body["bootstrap_port"]) == ("10.0.0.1", None)


def test_apis_without_ids_pass_untouched() -> None:
    out = outgoing(id_field=None, body=b' {"input": "x" } ')
    assert request_parts(out, AttemptIds.new(out, worker(D)), None) == [b' {"input": "x" } ']


def test_workers_see_their_own_key_and_only_without_one_the_clients() -> None:
    assert leg_headers(outgoing(), worker(D)) == b"x-a: 1\r\nauthorization: Bearer worker-key\r\n"
    assert leg_headers(outgoing(), worker(P)) == b"x-a: 1\r\nauthorization: Bearer client-key\r\n"


def test_headers_of_a_connection_stay_there() -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"connection", b"close, x-private"),
        (b"x-private", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"server", b"uvicorn"),
        (b"retry-after", b"3"),
    ]
    assert returned_headers(headers) == [(b"content-type", b"application/json"), (b"retry-after", b"3")]


def test_clients_get_their_own_ids_back() -> None:
    rewrite = IdRewriter(['my "id"', "second"], ["a" * 32, "b" * 32])
    data = b'{"id":"' + b"a" * 32 + b'","other":"' + b"b" * 32 + b'"}'
    assert json.loads(rewrite(data)) == {"id": 'my "id"', "other": "second"}


@given(events=st.lists(st.from_regex(rb"data: [a-z]{0,5}", fullmatch=True)), cuts=st.lists(st.integers(0, 100)))
def test_events_come_out_whole_however_they_arrive(events: list[bytes], cuts: list[int]) -> None:
    data = b"".join(event + b"\n\n" for event in events) + b"data: cut"
    splitter = EventSplitter()
    out, last = [], 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        piece = splitter.feed(data[last:cut])
        assert piece == b"" or piece.endswith(b"\n\n")
        out.append(piece)
        last = cut
    assert b"".join(out) + splitter.tail == data
    assert splitter.tail == b"data: cut"


def test_events_with_crlf() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\r\n\r\ndata: b") == b"data: a\r\n\r\n"
    assert splitter.tail == b"data: b"


def test_error_events() -> None:
    verdict = of_error(UpstreamError("the decode worker went away"), Outcome.FAILURE, retryable=False)
    error = {"message": "the decode worker went away", "type": "UpstreamError", "param": None, "code": 502}
    assert json.loads(error_event(verdict).removeprefix(b"data: ")) == {"error": error}
    name, data = responses_error_event(verdict).split(b"\n")[:2]
    assert name == b"event: error"
    event = json.loads(data.removeprefix(b"data: "))
    assert (event["type"], event["message"], event["error"]) == ("error", error["message"], error)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.OK),
        (400, Outcome.CLIENT_ERROR),
        (404, Outcome.CLIENT_ERROR),
        (408, Outcome.CLIENT_ERROR),
        (429, Outcome.BACKPRESSURE),
        (500, Outcome.FAILURE),
        (502, Outcome.FAILURE),
        (503, Outcome.BACKPRESSURE),
    ],
)
def test_what_a_status_says_about_a_worker(status: int, outcome: Outcome) -> None:
    """Rows 54, 55: only failures may open a breaker."""
    assert outcome_of_status(status) is outcome


async def test_an_alarm_that_is_moved_later_rings_later_and_once() -> None:
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    alarm = Alarm(loop, lambda: rung.append(loop.time()))
    started = loop.time()
    alarm.set(started + 0.05)
    for i in range(10):
        alarm.set(started + 0.06 + i * 0.01)
    await asyncio.sleep(0.1)
    assert rung == []
    await asyncio.sleep(0.15)
    assert len(rung) == 1
    assert rung[0] >= started + 0.15


async def test_an_alarm_that_is_moved_earlier_rings_earlier_and_stops() -> None:
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    alarm = Alarm(loop, lambda: rung.append(loop.time()))
    alarm.set(loop.time() + 60)
    alarm.set(loop.time() + 0.02)
    await asyncio.sleep(0.1)
    assert len(rung) == 1
    alarm.set(loop.time() + 0.02)
    alarm.set(NEVER)
    await asyncio.sleep(0.1)
    alarm.set(loop.time() + 0.02)
    alarm.stop()
    await asyncio.sleep(0.1)
    assert len(rung) == 1


async def test_news_between_two_waits_is_not_lost() -> None:
    waker = Waker(asyncio.get_running_loop())
    waker.wake()
    waker.wake()
    async with asyncio.timeout(1):
        await waker.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await waker.wait()
    asyncio.get_running_loop().call_later(0.01, waker.wake)
    async with asyncio.timeout(1):
        await waker.wait()


class Request:
    def __init__(self) -> None:
        self.aborted = 0

    def request_abort(self) -> None:
        self.aborted += 1


def test_requests_are_found_by_exact_ids_only() -> None:
    ids, a, b, c = RequestIds(), Request(), Request(), Request()
    for name, request in (("x", a), ("x", b), ("xy", c)):
        ids.add(name, request)
    assert list(ids.find("x")) == [a, b]
    assert list(ids.find("")) == []
    assert set(ids.all()) == {a, b, c}
    ids.discard("x", a)
    ids.discard("x", a)
    ids.discard("unknown", a)
    assert list(ids.find("x")) == [b]
    ids.discard("x", b)
    ids.discard("xy", c)
    assert len(ids) == 0


async def nothing(exchange: Exchange) -> None:
    return


async def other(exchange: Exchange) -> None:
    return


def test_routes() -> None:
    table = RouteTable([Route("/a", {"GET": nothing}), Route("/a/", {"POST": other}), Route("/a/b/", {"GET": other})])
    assert table.find("/a").path == "/a"
    assert table.find("/a/x/y").path == "/a/"
    assert table.find("/a/b/c").path == "/a/b/"
    for unknown in ("/", "/a/", "/ab", "", "//a"):
        with pytest.raises(NotFoundError):
            table.find(unknown)
    assert table.handler(table.find("/a"), "HEAD") is nothing
    with pytest.raises(MethodNotAllowedError, match="allows GET, not DELETE"):
        table.handler(table.find("/a"), "DELETE")
    with pytest.raises(ValueError, match="same path"):
        RouteTable([Route("/a", {"GET": nothing}), Route("/a", {"POST": other})])
