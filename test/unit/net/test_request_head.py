"""Properties of parsing: heads and chunked bodies mean the same however they arrive, and nothing crashes the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.errors import RequestError
from sgl_epd.net.chunked import ChunkedBody
from sgl_epd.net.headers import connection_options, encode_headers, get_header
from sgl_epd.net.request_head import CHUNKED, RequestHead

names = st.from_regex(rb"[A-Za-z][A-Za-z0-9-]{0,15}", fullmatch=True).filter(
    lambda name: name.lower() not in (b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade")
)
values = st.from_regex(rb"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)


@given(headers=st.lists(st.tuples(names, values), max_size=8), length=st.integers(0, 2**40))
def test_headers_come_out_as_they_went_in(headers: list[tuple[bytes, bytes]], length: int) -> None:
    lines = encode_headers([*headers, (b"Host", b"h"), (b"Content-Length", b"%d" % length)])
    head = RequestHead(b"POST /a?b=c HTTP/1.1\r\n" + lines + b"\r\n")
    assert (head.method, head.target, head.version, head.keep_alive) == ("POST", b"/a?b=c", "1.1", True)
    assert head.body_length == length
    assert head.headers[: len(headers)] == [(name.lower(), value) for name, value in headers]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_an_error(data: bytes) -> None:
    try:
        head = RequestHead(data + b"\r\n\r\n")
    except RequestError as error:
        assert error.status in (400, 501)
    else:
        assert head.version in ("1.0", "1.1")


@given(parts=st.lists(st.binary(min_size=1, max_size=50), max_size=10), step=st.integers(1, 60))
def test_a_chunked_body_is_the_same_however_it_arrives(parts: list[bytes], step: int) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    body = ChunkedBody()
    for at in range(0, len(data), step):
        assert not body.complete
        body.feed(data[at : at + step])
    assert body.complete
    assert not body.excess
    assert bytes(body.body) == b"".join(parts)


def test_bytes_behind_a_chunked_body_are_noticed() -> None:
    for excess in (b"GET / HTTP/1.1\r\n\r\n", b"\x00garbage"):
        body = ChunkedBody()
        body.feed(b"1\r\nx\r\n0\r\n\r\n" + excess)
        assert body.complete
        assert body.excess
        assert bytes(body.body) == b"x"


def test_chunked_is_told_from_no_body() -> None:
    assert RequestHead(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n").body_length == CHUNKED
    assert RequestHead(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").body_length == 0


@pytest.mark.parametrize(
    ("line", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True),
    ],
)
def test_keep_alive(line: bytes, keep_alive: bool) -> None:
    assert RequestHead(line).keep_alive is keep_alive


def test_header_helpers() -> None:
    headers = [(b"a", b"1"), (b"connection", b"Close, X-Private"), (b"a", b"2")]
    assert get_header(headers, b"a") == b"1"
    assert get_header(headers, b"b") is None
    assert connection_options(headers) == {b"close", b"x-private"}
