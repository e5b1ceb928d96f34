"""Any sequence of requests, cut anywhere, is served as it was meant: in order, each once, with its own body."""

from __future__ import annotations

import asyncio
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_epd.net.connection import ServerConnection
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.server import HttpServer, ServerLimits

MAX_BODY = 50_000


class Transport(asyncio.Transport):
    """Keeps what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    abort = close


def receive(connection: ServerConnection, data: bytes) -> None:
    """Deliver bytes as a loop does: into whatever buffer the protocol offers."""
    while data:
        buffer = connection.get_buffer(65536)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def echo(exchange: Exchange) -> None:
    await asyncio.sleep(0)
    exchange.respond(200, exchange.path.encode() + b"|" + bytes(exchange.body))


large = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(0, MAX_BODY))
bodies = st.binary(max_size=40) | large
requests = st.lists(st.tuples(st.sampled_from(["get", "length", "chunked"]), bodies), min_size=1, max_size=6)


def encode(number: int, kind: str, body: bytes) -> bytes:
    start = b"%b /%d HTTP/1.1\r\nHost: t\r\n" % (b"GET" if kind == "get" else b"POST", number)
    if kind == "get":
        return start + b"\r\n"
    if kind == "length":
        return start + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = [body[at : at + 20_000] for at in range(0, len(body), 20_000)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return start + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


async def serve(messages: list[bytes], cuts: list[int], wait: bool) -> Transport:
    """`wait`: each request only after the answer to the last, as a client does that does not pipeline."""
    server = HttpServer(echo, limits=ServerLimits(max_body_bytes=MAX_BODY))
    connection, transport = ServerConnection(server, asyncio.get_running_loop()), Transport()
    connection.connection_made(transport)
    for data in messages if wait else [b"".join(messages)]:
        last = 0
        for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
            receive(connection, data[last:cut])
            last = cut
        for _ in range(8 * len(messages)):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    return transport


def answers(written: bytes) -> list[bytes]:
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        size = int(length[1])
        found.append(rest[:size])
        written = rest[size:]
    return found


@settings(max_examples=80, deadline=None)
@given(requests=requests, cuts=st.lists(st.integers(0, 10**6), max_size=8), wait=st.booleans())
def test_requests_are_served_in_order_with_their_bodies(
    requests: list[tuple[str, bytes]], cuts: list[int], wait: bool
) -> None:
    messages = [encode(i, kind, body) for i, (kind, body) in enumerate(requests)]
    transport = asyncio.run(serve(messages, cuts, wait))
    expected = [b"/%d|" % i + (b"" if kind == "get" else body) for i, (kind, body) in enumerate(requests)]
    served = answers(transport.written)
    assert served == expected[: len(served)]
    if len(served) < len(expected):
        # Only a request that came in one piece with the end of a chunked body may be left unserved, and then the
        # connection is closed, so that the client knows.
        assert not wait
        assert requests[len(served) - 1][0] == "chunked"
        assert transport.closed


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_any_bytes_end_in_an_answer_or_in_waiting_for_more(data: bytes, cuts: list[int]) -> None:
    transport = asyncio.run(serve([data], cuts, wait=True))
    if transport.written:
        assert transport.written.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 431", b"HTTP/1.1 501"))
