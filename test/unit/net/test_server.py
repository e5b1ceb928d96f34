"""What an HTTP/1.1 client may expect of the server: framing, keep-alive, streaming, disconnects."""

from __future__ import annotations

import asyncio
import socket

import pytest
from sockets import HOST, RawClient, connected, served

from sgl_epd.errors import NotFoundError, RateLimitError
from sgl_epd.net.exchange import Exchange

GET = b"GET /x HTTP/1.1\r\nHost: t\r\n\r\n"


def post(body: bytes, extra: bytes = b"") -> bytes:
    return b"POST /p HTTP/1.1\r\nHost: t\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_keep_alive_serves_request_after_request() -> None:
    async with served() as port, connected(port) as c:
        for i in range(3):
            c.send(post(b"n%d" % i))
            assert (await c.reply())[2] == b"POST /p n%d" % i


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def slow_first(exchange: Exchange) -> None:
        if exchange.body == b"a":
            await asyncio.sleep(0.05)
        exchange.respond(200, bytes(exchange.body))

    async with served(slow_first) as port, connected(port) as c:
        c.send(post(b"a") + post(b"b") + GET + post(b"c"))
        assert [(await c.reply())[2] for _ in range(4)] == [b"a", b"b", b"", b"c"]


async def test_many_pipelined_requests_do_not_recurse() -> None:
    async with served() as port, connected(port) as c:
        c.send(GET * 3000)
        for _ in range(3000):
            assert (await c.reply())[0] == 200


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_request_may_arrive_in_pieces_of_any_size(step: int) -> None:
    data = post(bytes(range(256)) * 8) + b"GET /after HTTP/1.1\r\nHost: t\r\n\r\n"
    async with served() as port, connected(port) as c:
        c.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), step):
            c.send(data[at : at + step])
            await asyncio.sleep(0)
        assert (await c.reply())[2] == b"POST /p " + bytes(range(256)) * 8
        assert (await c.reply())[2] == b"GET /after "


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * (40 * 1024)

    async def digest(exchange: Exchange) -> None:
        exchange.respond(200, b"same" if exchange.body == body else b"different")

    async with served(digest) as port, connected(port) as c:
        for _ in range(2):
            c.send(post(body))
            assert (await c.reply())[2] == b"same"


@pytest.mark.parametrize("size", [8000, 8192 - 53, 8192, 8193, 50_000, 256 * 1024, 300_000])
async def test_what_follows_a_body_at_once_is_the_next_request(size: int) -> None:
    """Whatever part of it has come together with the head."""
    body = bytes(i * 7 % 251 for i in range(size))
    async with served() as port, connected(port) as c:
        c.send(post(body) + post(b"second") + GET)
        assert (await c.reply())[2] == b"POST /p " + body
        assert (await c.reply())[2] == b"POST /p second"
        assert (await c.reply())[2] == b"GET /x "


async def test_chunked_body_with_extensions_and_trailers() -> None:
    chunks = b"4;name=value\r\nwiki\r\n5\r\npedia\r\n0\r\nX-Trailer: t\r\n\r\n"
    async with served() as port, connected(port) as c:
        c.send(b"POST /p HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert (await c.reply())[2] == b"POST /p wikipedia"
        c.send(GET)
        assert (await c.reply())[2] == b"GET /x "


async def test_a_request_pipelined_behind_a_chunked_body_is_never_half_served() -> None:
    """The parser has eaten part of it, so the connection ends after the first answer."""
    request = b"POST /p HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    async with served() as port, connected(port) as c:
        c.send(request + GET)
        status, headers, body = await c.reply()
        assert (status, headers["connection"], body) == (200, "close", b"POST /p hi")
        assert await c.closed()


async def test_expect_100_continue() -> None:
    async with served() as port, connected(port) as c:
        c.send(b"POST /p HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert await c.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        c.send(b"abc")
        assert (await c.reply())[2] == b"POST /p abc"


async def test_http_1_0_closes_unless_asked_and_is_never_chunked() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.start(200)
        exchange.write(b"one")
        exchange.write(b"two")
        exchange.end()

    async with served(stream) as port, connected(port) as c:
        c.send(b"GET / HTTP/1.0\r\n\r\n")
        reply = await c.rest()
        assert b"transfer-encoding" not in reply
        assert reply.endswith(b"\r\n\r\nonetwo")
    async with served() as port, connected(port) as c:
        c.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await c.reply())[1]["connection"] == "keep-alive"
        c.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await c.reply())[1]["connection"] == "close"
        assert await c.closed()


async def test_connection_close_is_obeyed() -> None:
    async with served() as port, connected(port) as c:
        c.send(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        assert (await c.reply())[1]["connection"] == "close"
        assert await c.closed()


async def test_head_gets_the_length_but_no_body() -> None:
    async with served() as port, connected(port) as c:
        c.send(b"HEAD /x HTTP/1.1\r\nHost: t\r\n\r\n" + GET)
        head = await c.reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 8\r\n" in head
        assert (await c.reply())[2] == b"GET /x "


async def test_an_upgrade_offer_is_ignored() -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    async with served() as port, connected(port) as c:
        c.send(post(b"body", offer))
        assert (await c.reply())[2] == b"POST /p body"


async def test_streamed_answer_is_chunked() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.start(200, [(b"content-type", b"text/event-stream")])
        for part in (b"one", b"", b"x" * 100_000, b"three"):
            exchange.write(part)
            await exchange.drain()
        exchange.end()

    async with served(stream) as port, connected(port) as c:
        c.send(GET + GET)
        for _ in range(2):
            assert (await c.reply())[2] == b"one" + b"x" * 100_000 + b"three"


async def test_a_slow_reader_makes_drain_wait() -> None:
    progress: list[int] = []

    async def stream(exchange: Exchange) -> None:
        exchange.start(200)
        for i in range(400):
            exchange.write(b"z" * 65536)
            await exchange.drain()
            progress.append(i)
        exchange.end()

    async with served(stream) as port:
        with socket.create_connection((HOST, port)) as sock:
            sock.setblocking(False)
            sock.send(GET)
            await asyncio.sleep(0.3)
            stuck_at = len(progress)
            assert stuck_at < 400
            received, loop = 0, asyncio.get_running_loop()
            async with asyncio.timeout(10):
                while received < 400 * 65536:
                    received += len(await loop.sock_recv(sock, 1 << 20))
            assert len(progress) > stuck_at


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        started.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            assert not exchange.open
            cancelled.set()
            raise

    async with served(wait) as port:
        async with connected(port) as c:
            c.send(post(b"x"))
            await started.wait()
        async with asyncio.timeout(2):
            await cancelled.wait()


async def test_a_client_that_leaves_in_the_middle_of_a_body_never_reaches_the_handler() -> None:
    called = False

    async def handler(exchange: Exchange) -> None:
        nonlocal called
        called = True
        exchange.respond(200)

    async with served(handler) as port:
        async with connected(port) as c:
            c.send(post(b"x" * 1000)[:-1])
            await c.writer.drain()
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert not called


async def test_request_errors_become_openai_errors() -> None:
    async def handler(exchange: Exchange) -> None:
        raise RateLimitError("slow down", retry_after_s=2.2)

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        status, headers, body = await c.reply()
        assert (status, headers["retry-after"]) == (429, "2")
        assert body == b'{"error":{"message":"slow down","type":"RateLimitError","param":null,"code":429}}'
        c.send(GET)
        assert (await c.reply())[0] == 429


async def test_unexpected_errors_are_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(exchange: Exchange) -> None:
        raise ValueError("secret detail")

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        status, _, body = await c.reply()
        assert status == 500
        assert b"secret" not in body
        assert "secret detail" in caplog.text


async def test_an_error_after_the_start_breaks_the_connection() -> None:
    """A client must not take half an answer for a whole one."""

    async def handler(exchange: Exchange) -> None:
        exchange.start(200)
        exchange.write(b"half")
        raise NotFoundError("gone")

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        try:
            received = await c.rest()
        except ConnectionResetError:
            return
        assert b"0\r\n\r\n" not in received


async def test_a_handler_without_an_answer_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(exchange: Exchange) -> None:
        return

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        assert (await c.reply())[0] == 500


async def test_only_one_answer_can_be_given() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, b"first")
        with pytest.raises(RuntimeError, match="started already"):
            exchange.respond(200, b"second")

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        assert (await c.reply())[2] == b"first"


async def test_reply_headers_are_sent_with_every_kind_of_answer() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.reply_headers.append((b"x-request-id", b"42"))
        raise NotFoundError("no")

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        status, headers, _ = await c.reply()
        assert (status, headers["x-request-id"]) == (404, "42")
        assert headers["date"].endswith("GMT")


async def test_nodelay_is_set_on_accepted_sockets() -> None:
    seen: list[int] = []

    async def handler(exchange: Exchange) -> None:
        sock = exchange._connection._transport.get_extra_info("socket")
        seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        exchange.respond(200)

    async with served(handler) as port, connected(port) as c:
        c.send(GET)
        await c.reply()
    assert seen and seen[0] != 0


async def _ask(c: RawClient) -> int:
    c.send(GET)
    return (await c.reply())[0]


async def test_closing_lets_running_requests_finish_and_refuses_new_connections() -> None:
    from sgl_epd.net.server import HttpServer

    release = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        await release.wait()
        exchange.respond(200, b"done")

    server = HttpServer(handler)
    port = await server.listen(HOST, 0)
    async with connected(port) as busy, connected(port) as idle:
        asking = asyncio.create_task(_ask(busy))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(server.close(grace_s=5))
        assert await idle.closed()
        with pytest.raises(OSError):
            await asyncio.open_connection(HOST, port)
        release.set()
        assert await asking == 200
        async with asyncio.timeout(2):
            await closing


async def test_closing_cuts_what_does_not_finish() -> None:
    from sgl_epd.net.server import HttpServer

    async def handler(exchange: Exchange) -> None:
        await asyncio.sleep(60)

    server = HttpServer(handler)
    port = await server.listen(HOST, 0)
    async with connected(port) as c:
        c.send(GET)
        await asyncio.sleep(0.05)
        assert server.active_requests == 1
        async with asyncio.timeout(2):
            await server.close(grace_s=0.1)
        assert server.active_requests == 0
        assert not server.connections
