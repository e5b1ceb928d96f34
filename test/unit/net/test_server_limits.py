"""What the server refuses: bytes that could be read in two ways, and clients that take too much or too long."""

from __future__ import annotations

import asyncio

import pytest
from sockets import connected, served

from sgl_epd.errors import AuthenticationError
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.server import ServerLimits

HOST_LINE = b"Host: t\r\n"


def head(*lines: bytes, method: bytes = b"POST") -> bytes:
    return method + b" /p HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


SMUGGLING = {
    "length and chunked": (head(b"Host: t", b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
    "chunked and length": (head(b"Host: t", b"Transfer-Encoding: chunked", b"Content-Length: 5"), 400),
    "two lengths": (head(b"Host: t", b"Content-Length: 5", b"Content-Length: 6"), 400),
    "the same length twice": (head(b"Host: t", b"Content-Length: 5", b"Content-Length: 5"), 400),
    "list of lengths": (head(b"Host: t", b"Content-Length: 5, 5"), 400),
    "signed length": (head(b"Host: t", b"Content-Length: +5"), 400),
    "hexadecimal length": (head(b"Host: t", b"Content-Length: 0x5"), 400),
    "huge length": (head(b"Host: t", b"Content-Length: 99999999999999999999999"), 400),
    "other coding": (head(b"Host: t", b"Transfer-Encoding: gzip, chunked"), 501),
    "coding twice": (head(b"Host: t", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    "not quite chunked": (head(b"Host: t", b"Transfer-Encoding: xchunked"), 400),
    "space before the colon": (head(b"Host: t", b"Content-Length : 5"), 400),
    "folded header": (head(b"Host: t", b"X-A: b\r\n c"), 400),
    "bare line feed": (b"POST /p HTTP/1.1\nHost: t\r\n\r\n", 400),
    "bare carriage return in a value": (head(b"Host: t", b"X-A: b\rc: d"), 400),
    "zero byte in a value": (head(b"Host: t", b"X-A: b\0c"), 400),
    "no host": (head(b"X-A: b"), 400),
    "two hosts": (head(b"Host: t", b"Host: u"), 400),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_ambiguous_requests_are_refused_and_the_connection_ends(name: str) -> None:
    data, expected = SMUGGLING[name]
    called = False

    async def handler(exchange: Exchange) -> None:
        nonlocal called
        called = True
        exchange.respond(200)

    async with served(handler) as port, connected(port) as c:
        # What would be a second, smuggled request must not be read as one.
        c.send(data + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n")
        status, headers, _ = await c.reply()
        assert (status, headers["connection"]) in [(expected, "close"), (400, "close")]
        c.writer.close()
        assert not called


async def test_malformed_chunk_sizes_are_refused() -> None:
    async with served() as port, connected(port) as c:
        c.send(head(b"Host: t", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\nzz\r\n\r\n")
        assert (await c.reply())[0] == 400


async def test_a_body_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    limits = ServerLimits(max_body_bytes=1000)
    async with served(limits=limits) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Content-Length: 1001"))
        status, headers, body = await c.reply()
        assert (status, headers["connection"]) == (413, "close")
        assert b"PayloadTooLargeError" in body
        assert await c.closed()
    async with served(limits=limits) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Content-Length: 1000") + b"x" * 1000)
        assert (await c.reply())[0] == 200


async def test_the_refusal_reaches_a_client_that_is_still_sending() -> None:
    """Closing with unread bytes would reset the connection and lose the answer on its way."""
    async with served(limits=ServerLimits(max_body_bytes=1000)) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Content-Length: 8000000"))
        for _ in range(20):
            c.send(b"x" * 100_000)
            await asyncio.sleep(0.002)
        assert (await c.reply())[0] == 413


async def test_a_chunked_body_is_cut_off_at_the_limit() -> None:
    async with served(limits=ServerLimits(max_body_bytes=1000)) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Transfer-Encoding: chunked") + b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await asyncio.sleep(0.05)
        c.send(b"1\r\nx\r\n")
        assert (await c.reply())[0] == 413


@pytest.mark.parametrize("complete", [True, False])
async def test_a_head_that_is_too_large_is_refused(complete: bool) -> None:
    async with served(limits=ServerLimits(max_head_bytes=2000)) as port, connected(port) as c:
        c.send(b"GET / HTTP/1.1\r\nHost: t\r\nX-Long: " + b"x" * 3000 + (b"\r\n\r\n" if complete else b""))
        assert (await c.reply())[0] == 431


async def test_a_head_that_does_not_end_is_given_up() -> None:
    async with served(limits=ServerLimits(head_timeout_s=0.1)) as port, connected(port) as c:
        c.send(b"GET / HTTP/1.1\r\nHost:")
        assert (await c.reply())[0] == 408


async def test_a_body_that_stalls_is_given_up() -> None:
    async with served(limits=ServerLimits(body_stall_timeout_s=0.1)) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Content-Length: 100") + b"part")
        assert (await c.reply())[0] == 408


async def test_a_slow_body_that_keeps_coming_is_not() -> None:
    async with served(limits=ServerLimits(body_stall_timeout_s=0.9)) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Content-Length: 6"))
        for _ in range(6):
            await asyncio.sleep(0.25)
            c.send(b"x")
        assert (await c.reply())[2] == b"POST /p xxxxxx"


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with served(limits=ServerLimits(idle_timeout_s=0.1, head_timeout_s=0.1)) as port:
        async with connected(port) as silent:
            assert await silent.closed()
        async with connected(port) as c:
            c.send(head(b"Host: t", method=b"GET"))
            assert (await c.reply())[0] == 200
            assert await c.closed()


async def test_a_running_request_is_not_idle() -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(1.2)
        exchange.respond(200, b"late")

    limits = ServerLimits(idle_timeout_s=0.1, head_timeout_s=0.1, body_stall_timeout_s=0.1)
    async with served(slow, limits) as port, connected(port) as c:
        c.send(head(b"Host: t", b"Content-Length: 2") + b"hi")
        assert (await c.reply())[2] == b"late"


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    cancelled = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        exchange.start(200)
        try:
            while True:
                exchange.write(b"z" * 65536)
                await exchange.drain()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with served(stream, ServerLimits(write_stall_timeout_s=0.2)) as port, connected(port) as c:
        c.writer.transport.pause_reading()
        c.send(head(b"Host: t", method=b"GET"))
        async with asyncio.timeout(5):
            await cancelled.wait()


async def test_the_head_check_refuses_before_the_body_is_read() -> None:
    def check(exchange: Exchange) -> None:
        raise AuthenticationError("no key")

    async with served(check_head=check) as port:
        async with connected(port) as c:
            c.send(head(b"Host: t", b"Content-Length: 100000000", b"Expect: 100-continue"))
            status, headers, _ = await c.reply()
            assert (status, headers["connection"]) == (401, "close")
        async with connected(port) as c:
            # Nothing is left unread, so the connection can go on.
            c.send(head(b"Host: t", b"Content-Length: 2") + b"hi" + head(b"Host: t", method=b"GET"))
            assert [(await c.reply())[0] for _ in range(2)] == [401, 401]


async def test_a_flood_of_pipelined_bytes_is_held_back() -> None:
    release = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        await release.wait()
        exchange.respond(200)

    request = head(b"Host: t", b"X-Pad: " + b"x" * 20_000, method=b"GET")
    async with served(handler) as port, connected(port) as c:
        c.send(request * 1000)
        await asyncio.sleep(0.3)
        assert c.writer.transport.get_write_buffer_size() > 0
        release.set()
        for _ in range(1000):
            assert (await c.reply())[0] == 200
