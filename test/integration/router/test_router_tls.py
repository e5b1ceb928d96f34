"""TLS towards clients and workers, with and without certificates on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster import chat, make_config
from http_client import request
from test_router_control import until

from sgl_epd.errors import ConfigError
from sgl_epd_router.app import RouterApp
from sgl_epd_router.tls import client_context, server_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of it for `server` and `client`; `stranger` signs itself."""
    folder = tmp_path_factory.mktemp("certs")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger"):
        extra = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        openssl(
            "req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", *extra
        )
    (folder / "san.txt").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "client"):
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san.txt")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
    return folder


@contextlib.asynccontextmanager
async def router(*flags: str) -> AsyncIterator[RouterApp]:
    app = RouterApp(make_config("--host", "127.0.0.1", "--port", "0", "--health-check-interval-secs", "0.1", *flags))
    await app.start()
    try:
        yield app
    finally:
        await app.stop(grace_s=0)


def server_flags(certs: Path) -> list[str]:
    return ["--tls-cert-path", str(certs / "server.pem"), "--tls-key-path", str(certs / "server.key")]


async def get_liveness(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"GET /liveness HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n")
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()


async def test_clients_can_use_tls(certs: Path) -> None:
    async with router(*server_flags(certs)) as app:
        trusting = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        assert (await get_liveness(app.port, trusting)).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLCertVerificationError):
            await get_liveness(app.port, ssl.create_default_context())


async def test_only_clients_with_a_certificate_of_the_ca_get_in(certs: Path) -> None:
    async with router(*server_flags(certs), "--tls-client-ca-path", str(certs / "ca.pem")) as app:
        known = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        known.load_cert_chain(certs / "client.pem", certs / "client.key")
        assert (await get_liveness(app.port, known)).startswith(b"HTTP/1.1 200")
        unknown = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        stranger = ssl.create_default_context(cafile=str(certs / "ca.pem"))
        stranger.load_cert_chain(certs / "stranger.pem", certs / "stranger.key")
        for context in (unknown, stranger):
            # With TLS 1.3 the refusal comes after the client's own handshake: as an error, or as a closed connection.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert await get_liveness(app.port, context) == b""
        assert app.context.metrics.requests.values == {("/liveness", "200"): [1.0]}


@contextlib.asynccontextmanager
async def tls_worker(certs: Path) -> AsyncIterator[tuple[int, list[str]]]:
    """An aggregated worker that demands a certificate; notes whose it was."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certs / "ca.pem"))
    context.load_cert_chain(certs / "server.pem", certs / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    callers: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            await reader.readexactly(length)
            subject = writer.get_extra_info("peercert")["subject"]
            callers.append(subject[0][0][1])
            body = b'{"choices": []}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], callers
    finally:
        server.close()
        await server.wait_closed()


async def test_workers_can_demand_the_routers_certificate(certs: Path) -> None:
    mtls = ["--client-cert-path", str(certs / "client.pem"), "--client-key-path", str(certs / "client.key")]
    ca = ["--ca-cert-path", str(certs / "ca.pem")]
    async with tls_worker(certs) as (port, callers):
        url = ["--worker-urls", f"https://127.0.0.1:{port}"]
        async with router(*url, *mtls, *ca) as app:
            await until(lambda: next(iter(app.registry.workers.values())).health.proven)
            assert await ask(app.port) == 200
            assert set(callers) == {"client"}
        for incomplete in (ca, []):
            async with router(*url, *incomplete) as app:
                await until(lambda: not next(iter(app.registry.workers.values())).healthy)
                assert await ask(app.port) == 503


async def ask(port: int) -> int:
    return (await request(f"http://127.0.0.1:{port}", "POST", "/v1/chat/completions", chat())).status


def test_files_that_are_no_certificates_end_the_start_with_a_sentence(certs: Path) -> None:
    bad = certs / "bad.pem"
    bad.write_text("this is no certificate")
    key = str(certs / "server.key")
    with pytest.raises(ConfigError, match="--tls-cert-path: cannot use"):
        server_context(make_config("--tls-cert-path", str(bad), "--tls-key-path", key))
    with pytest.raises(ConfigError, match="holds no CA certificates"):
        client_context(make_config("--ca-cert-path", str(bad)))
    with pytest.raises(ConfigError, match="--client-cert-path: cannot use"):
        client_context(make_config("--client-cert-path", str(certs / "client.pem"), "--client-key-path", key))
