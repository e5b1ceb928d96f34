"""The client: pooling, framing of answers, and every way in which a server can fail."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from sockets import HOST, client, echo, ok, read_request, scripted, served

from sgl_epd.errors import ConnectError, DisconnectedError, PeerProtocolError, TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import RawHeaders
from sgl_epd.net.origin import Origin


class Recorder:
    """A sink that keeps everything and counts the ends."""

    def __init__(self) -> None:
        self.status = 0
        self.data: list[bytes] = []
        self.ends = 0
        self.errors: list[TransportError] = []
        self.news = asyncio.Event()

    def on_head(self, status: int, headers: RawHeaders) -> None:
        self.status = status
        self.news.set()

    def on_data(self, data: bytes) -> None:
        self.data.append(data)
        self.news.set()

    def on_end(self) -> None:
        self.ends += 1
        self.news.set()

    def on_error(self, error: TransportError) -> None:
        self.errors.append(error)
        self.news.set()

    async def done(self) -> None:
        async with asyncio.timeout(5):
            while not self.ends and not self.errors:
                self.news.clear()
                await self.news.wait()


async def get(c: HttpClient, url: str, **kwargs: Any) -> bytes:
    return (await c.fetch("GET", url + "/x", timeout_s=5, **kwargs)).body


async def test_connections_are_reused() -> None:
    peers: set[int] = set()

    async def handler(exchange: Exchange) -> None:
        peers.add(id(exchange._connection))
        exchange.respond(200, bytes(exchange.body))

    async with served(handler) as port, client() as c:
        for i in range(5):
            reply = await c.fetch("POST", f"http://{HOST}:{port}/", body=b"n%d" % i)
            assert (reply.status, reply.body) == (200, b"n%d" % i)
        assert len(peers) == 1
        await asyncio.gather(*[get(c, f"http://{HOST}:{port}") for _ in range(3)])
        assert 1 < len(peers) <= 4


async def test_a_body_in_pieces_arrives_in_order() -> None:
    image = bytes(range(256)) * 20_000
    async with served() as port, client() as c:
        sink = Recorder()
        pieces = [b"head|", memoryview(image), bytearray(b"|tail")]
        c.send(c.origin(f"http://{HOST}:{port}"), "POST", "/p", sink, body=pieces)
        await sink.done()
        assert b"".join(sink.data) == b"POST /p head|" + image + b"|tail"


async def test_path_prefix_and_ipv6_in_origins() -> None:
    assert Origin("http://[::1]:80/base/").path == "/base"
    assert Origin("http://[::1]:8080").host_header == b"[::1]:8080"
    assert Origin("https://h").port == 443
    for wrong in ("h:80", "ftp://h", "http://"):
        with pytest.raises(ValueError, match="not an http"):
            Origin(wrong)


async def test_chunked_and_interim_answers() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await asyncio.sleep(0.01)
        writer.write(b"2\r\nde\r\n0\r\nX-Trailer: t\r\n\r\n")
        await read_request(reader)
        writer.write(ok(b"again"))
        await writer.drain()

    async with scripted(script) as url, client() as c:
        assert await get(c, url) == b"abcde"
        assert await get(c, url) == b"again"


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        await writer.drain()

    async with scripted(script) as url, client() as c:
        assert await get(c, url) == b"until the end"


CUT_OFF = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
}


@pytest.mark.parametrize("name", CUT_OFF)
async def test_a_cut_off_answer_is_an_error(name: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CUT_OFF[name])
        await writer.drain()

    async with scripted(script) as url, client() as c:
        with pytest.raises(DisconnectedError):
            await get(c, url)


GARBAGE = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "bad status": b"HTTP/1.1 abc OK\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000,
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_an_error(name: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(GARBAGE[name])
        await writer.drain()
        await reader.read()

    async with scripted(script) as url, client() as c:
        with pytest.raises(PeerProtocolError):
            await get(c, url)
        assert not c.connections or all(not conn.usable for conn in c.connections)


async def test_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port = sock.getsockname()[1]
    async with client() as c:
        with pytest.raises(ConnectError, match="cannot connect"):
            await get(c, f"http://{HOST}:{port}")
        with pytest.raises(ConnectError):
            await get(c, "http://host.invalid:1")


async def test_connecting_is_bounded() -> None:
    """A server that accepts and then says nothing to the TLS handshake."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(script) as url, client(connect_timeout_s=0.1) as c:
        with pytest.raises(ConnectError, match=r"within 0\.1 s"):
            await get(c, url.replace("http:", "https:"))


async def test_a_connection_that_died_while_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl_epd.net.call.STALE_AFTER_S", 0.05)
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(ok())
        await writer.drain()
        if len(seen) == 1:
            # Closes in the very moment in which the next request arrives.
            await read_request(reader)

    async with scripted(script) as url, client() as c:
        assert await get(c, url) == b"ok"
        await asyncio.sleep(0.1)
        assert (await c.fetch("POST", url + "/p", body=b"sent twice")).body == b"ok"
        assert seen[1].endswith(b"sent twice")


@pytest.mark.parametrize("answered", [0, 1])
async def test_a_connection_in_use_that_dies_is_not_replaced(answered: int) -> None:
    """There the server has seen the request and may have acted on it."""
    requests = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        for _ in range(answered):
            await read_request(reader)
            writer.write(ok())
            requests += 1
        await read_request(reader)
        requests += 1

    async with scripted(script) as url, client() as c:
        for _ in range(answered):
            assert await get(c, url) == b"ok"
        with pytest.raises(DisconnectedError, match="without an answer"):
            await get(c, url)
        assert requests == answered + 1


async def test_a_reused_connection_that_dies_in_the_answer_is_not_replaced() -> None:
    requests = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        writer.write(ok())
        await read_request(reader)
        requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await writer.drain()

    async with scripted(script) as url, client() as c:
        await get(c, url)
        with pytest.raises(DisconnectedError, match="before its answer was complete"):
            await get(c, url)
        assert requests == 1


async def test_idle_connections_are_closed_before_the_server_does() -> None:
    async with served() as port, client(idle_timeout_s=0.2) as c:
        await get(c, f"http://{HOST}:{port}")
        (first,) = c.connections
        await asyncio.sleep(0.3)
        await get(c, f"http://{HOST}:{port}")
        assert first not in c.connections
        await asyncio.sleep(2.3)  # the sweep comes once a second
        assert not c.connections


async def test_bytes_after_the_answer_end_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ok() + ok(b"unasked"))
        await writer.drain()
        await reader.read()

    async with scripted(script) as url, client() as c:
        assert await get(c, url) == b"ok"
        assert await get(c, url) == b"ok"


async def test_an_early_answer_ends_the_connection() -> None:
    """The server refuses while the body is still being sent; what is unsent must not be taken for a next request."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ok(b"too large"))
        await writer.drain()
        await asyncio.sleep(0.05)
        await reader.read()

    async with scripted(script) as url, client() as c:
        sink = Recorder()
        c.send(c.origin(url), "POST", "/", sink, body=[b"x" * 50_000_000])
        await sink.done()
        assert b"".join(sink.data) == b"too large"
        assert all(not connection.usable for connection in c.connections)


async def test_connection_close_is_obeyed() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ok(extra=b"connection: close\r\n"))
        await writer.drain()
        await reader.read()

    async with scripted(script) as url, client() as c:
        assert await get(c, url) == b"ok"
        assert all(not connection.usable for connection in c.connections)


async def test_cancel_closes_the_connection_and_silences_the_sink() -> None:
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        assert await reader.read() == b""
        gone.set()

    async with scripted(script) as url, client() as c:
        sink = Recorder()
        call = c.send(c.origin(url), "GET", "/", sink)
        while not sink.data:
            await asyncio.sleep(0)
        call.cancel()
        async with asyncio.timeout(2):
            await gone.wait()
        assert (sink.ends, sink.errors) == (0, [])


async def test_cancel_before_the_connection_is_made() -> None:
    async with served() as port, client() as c:
        sink = Recorder()
        c.send(c.origin(f"http://{HOST}:{port}"), "GET", "/", sink).cancel()
        await asyncio.sleep(0.05)
        assert (sink.status, sink.ends, sink.errors) == (0, 0, [])
        assert not c.connections


async def test_fetch_is_bounded() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with scripted(script) as url, client() as c:
        with pytest.raises(TimeoutError):
            await c.fetch("GET", url, timeout_s=0.1)
        await asyncio.sleep(0.05)
        assert not c.connections


async def test_a_paused_call_holds_the_server_back() -> None:
    sent = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal sent
        exchange.start(200)
        for _ in range(400):
            exchange.write(b"z" * 65536)
            await exchange.drain()
            sent += 1
        exchange.end()

    async with served(handler) as port, client() as c:
        sink = Recorder()
        call = c.send(c.origin(f"http://{HOST}:{port}"), "GET", "/", sink)
        while not sink.data:
            await asyncio.sleep(0)
        call.pause_reading()
        await asyncio.sleep(0.3)
        assert sent < 400
        call.resume_reading()
        await sink.done()
        assert sum(map(len, sink.data)) == 400 * 65536
        # The connection is fit for the next request.
        assert (await c.fetch("GET", f"http://{HOST}:{port}/")).status == 200


async def test_forget_closes_what_is_idle() -> None:
    async with served() as port, client() as c:
        url = f"http://{HOST}:{port}"
        await get(c, url)
        c.forget(url)
        await asyncio.sleep(0.05)
        assert not c.connections
        assert await get(c, url) == b"GET /x "


async def test_nodelay_is_set() -> None:
    async with served(echo) as port, client() as c:
        await get(c, f"http://{HOST}:{port}")
        (connection,) = c.connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
