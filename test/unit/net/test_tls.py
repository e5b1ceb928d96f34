"""TLS on both sides, with and without client certificates."""

from __future__ import annotations

import contextlib
import ssl

import pytest
import trustme
from sockets import HOST, client, connected

from sgl_epd.errors import ConnectError, TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.server import HttpServer


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    if mutual:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(authority: trustme.CA, *, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        authority.issue_cert("router").configure_cert(context)
    return context


async def answer(exchange: Exchange) -> None:
    if exchange.path == "/stream":
        exchange.start(200)
        for _ in range(20):
            exchange.write(b"x" * 50_000)
            await exchange.drain()
        exchange.end()
    else:
        exchange.respond(200, bytes(exchange.body))


async def test_large_bodies_and_streams_over_tls(authority: trustme.CA) -> None:
    server = HttpServer(answer)
    port = await server.listen(HOST, 0, tls=server_tls(authority))
    tls_client = HttpClient(tls=client_tls(authority))
    body = bytes(range(256)) * 12_000
    for _ in range(2):
        assert (await tls_client.fetch("POST", f"https://{HOST}:{port}/", body=body)).body == body
    assert (await tls_client.fetch("GET", f"https://{HOST}:{port}/stream")).body == b"x" * 1_000_000
    await tls_client.close()
    await server.close()


async def test_a_server_that_cannot_prove_its_name_is_refused(authority: trustme.CA) -> None:
    server = HttpServer(answer)
    port = await server.listen(HOST, 0, tls=server_tls(authority))
    async with client() as c:
        with pytest.raises(ConnectError, match="certificate"):
            await c.fetch("GET", f"https://{HOST}:{port}/")
    await server.close()


async def test_mutual_tls(authority: trustme.CA) -> None:
    server = HttpServer(answer)
    port = await server.listen(HOST, 0, tls=server_tls(authority, mutual=True))
    known = HttpClient(tls=client_tls(authority, certificate=True))
    assert (await known.fetch("GET", f"https://{HOST}:{port}/")).status == 200
    unknown = HttpClient(tls=client_tls(authority))
    with pytest.raises(TransportError):
        await unknown.fetch("GET", f"https://{HOST}:{port}/")
    for made in (known, unknown):
        await made.close()
    await server.close()


async def test_plain_http_on_a_tls_port_gets_nothing(authority: trustme.CA) -> None:
    server = HttpServer(answer)
    port = await server.listen(HOST, 0, tls=server_tls(authority))
    async with connected(port) as c:
        c.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in await c.rest()
    await server.close()
