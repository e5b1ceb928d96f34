"""Keys, header smuggling, TLS. (SSRF, admin keys and worker keys: `test_router_control.py`.)"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from pathlib import Path

import pytest
from cluster import chat, cluster
from http_client import Link

CHAT = "/v1/chat/completions"


async def test_clients_need_a_key() -> None:
    async with cluster(regular=1, flags=["--api-key", "sk-one", "sk-two"]) as c:
        for headers in (
            {},
            {"authorization": "Bearer sk-on"},
            {"authorization": "Bearer "},
            {"authorization": "sk-one"},
        ):
            refused = await c.request("POST", CHAT, chat(), **headers)
            assert refused.status == 401, headers
            assert refused.error["type"] == "AuthenticationError"
        for key in ("sk-one", "sk-two"):
            assert (await c.request("POST", CHAT, chat(), authorization=f"Bearer {key}")).status == 200
        assert len(c.regular[0].requests) == 2
        for path in ("/health", "/liveness", "/readiness"):
            assert (await c.request("GET", path)).status == 200, "load balancers have no key"
        assert (await c.request("GET", "/v1/models")).status == 401


async def test_refused_before_the_body_is_sent() -> None:
    async with cluster(regular=1, flags=["--api-key", "sk"]) as c, await c.link() as link:
        await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n")
        async with asyncio.timeout(2):
            assert await link.read_head() == 401


async def test_hop_by_hop_headers_stay_here() -> None:
    """Headers that belong to the client's connection must not reach a worker, nor those that `Connection` names."""
    async with cluster(regular=1) as c:
        headers = {
            "connection": "keep-alive, x-secret-hop",
            "x-secret-hop": "1",
            "te": "trailers",
            "keep-alive": "timeout=5",
            "proxy-authorization": "Basic eDp5",
            "upgrade": "h2c",
            "accept-encoding": "gzip",
            "x-kept": "yes",
        }
        assert (await c.request("POST", CHAT, chat(), **headers)).status == 200
        got = dict(c.regular[0].requests[0].request.headers)
        assert got["x-kept"] == "yes"
        for name in set(headers) - {"x-kept", "connection"}:
            assert name not in got, name
        assert "x-secret-hop" not in got.get("connection", "")


SMUGGLING: dict[str, bytes] = {
    "two lengths": b"content-length: 4\r\ncontent-length: 40\r\n\r\n{}{}",
    "length and chunked": b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    "odd chunked": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "negative length": b"content-length: -1\r\n\r\n{}",
    "plus sign": b"content-length: +2\r\n\r\n{}",
    "hex length": b"content-length: 0x2\r\n\r\n{}",
    "space before colon": b"content-length : 2\r\n\r\n{}",
    "folded header": b"x-a: 1\r\n b: 2\r\ncontent-length: 2\r\n\r\n{}",
    "bare LF in header": b"x-a: 1\nx-b: 2\r\ncontent-length: 2\r\n\r\n{}",
    "NUL in header": b"x-a: 1\x00\r\ncontent-length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("rest", SMUGGLING.values(), ids=SMUGGLING)
async def test_ambiguous_requests_are_refused(rest: bytes) -> None:
    async with cluster(regular=1) as c, await c.link() as link:
        await link.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + rest)
        async with asyncio.timeout(3):
            status = await link.read_head()
        assert status == 400
        assert link.header("connection") == "close"
        assert not c.regular[0].requests


async def test_a_body_cannot_carry_a_second_request_to_the_worker() -> None:
    """What looks like a request inside a body stays a body."""
    async with cluster(regular=1) as c:
        inner = "\r\n\r\nPOST /flush_cache HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
        assert (await c.chat(inner)).status == 200
        assert c.regular[0].requests[0].body["messages"][0]["content"] == inner
        assert not [r for r in c.regular[0].control if r.path == "/flush_cache"]


async def test_header_values_are_forwarded_as_one_line() -> None:
    """No way to put a line break into a header that the router writes."""
    async with cluster(regular=1) as c:
        reply = await c.request("POST", CHAT, chat(), x_request_id="a%0d%0ax-injected: 1")
        assert reply.status == 200
        got = c.regular[0].requests[0].request
        assert got.header("x-request-id") == "a%0d%0ax-injected: 1"
        assert got.header("x-injected") is None


async def test_too_many_header_bytes() -> None:
    async with cluster(regular=1) as c, await c.link() as link:
        await link.send_raw(b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 200_000)
        async with asyncio.timeout(3):
            assert await link.read_head() in (400, 413, 431)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server certificate for localhost, and a client certificate."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca")
    for name in ("server", "client"):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        sign = ("x509", "-req", "-days", "2", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*sign, "-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "san")
    return folder


async def tls_chat(url: str, context: ssl.SSLContext) -> int:
    host, port = url.removeprefix("http://").split(":")
    link = Link(*await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost"))
    try:
        await link.send("POST", CHAT, chat("over TLS", stream=True))
        reply = await link.reply()
        assert reply.status != 200 or reply.events[-1] == "[DONE]"
        return reply.status
    finally:
        await link.close()


async def test_tls(certificates: Path) -> None:
    flags = ["--tls-cert-path", str(certificates / "server.pem"), "--tls-key-path", str(certificates / "server.key")]
    async with cluster(prefill=1, decode=1, flags=flags) as c:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        assert await tls_chat(c.url, context) == 200


async def test_mutual_tls(certificates: Path) -> None:
    flags = ["--tls-cert-path", str(certificates / "server.pem"), "--tls-key-path", str(certificates / "server.key")]
    flags += ["--tls-client-ca-path", str(certificates / "ca.pem")]
    async with cluster(regular=1, flags=flags) as c:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await tls_chat(c.url, context)
        context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        assert await tls_chat(c.url, context) == 200


async def test_plain_http_to_a_tls_port_is_just_closed(certificates: Path) -> None:
    flags = ["--tls-cert-path", str(certificates / "server.pem"), "--tls-key-path", str(certificates / "server.key")]
    async with cluster(regular=1, flags=flags) as c, await c.link() as link:
        await link.send("GET", "/health")
        async with asyncio.timeout(3):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await link.read_head()


async def test_errors_have_openai_shape() -> None:
    async with cluster(regular=1, flags=["--api-key", "sk"]) as c:
        error = json.loads((await c.request("POST", CHAT, chat())).body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
