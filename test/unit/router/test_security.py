"""Keys, worker addresses and logs: who is let in, what may be called, and what is never written."""

from __future__ import annotations

import json
import logging
from ipaddress import ip_address

import pytest

from sgl_epd.errors import AuthenticationError, BadRequestError, PermissionDeniedError
from sgl_epd_router.auth import Auth, admin_keys
from sgl_epd_router.logs import JsonFormatter, TextFormatter, redact
from sgl_epd_router.ssrf import WorkerGuard


def test_without_keys_everything_is_open() -> None:
    Auth().check_client(None)
    Auth().check_admin(None)


def test_client_keys_open_client_routes_and_control_where_there_is_no_admin_key() -> None:
    auth = Auth(["one", "two"])
    auth.check_client(b"Bearer one")
    auth.check_client(b"bearer  two ")
    auth.check_client(None, b"two")
    auth.check_admin(b"Bearer one")
    for wrong in (None, b"one", b"Bearer on", b"Bearer one1", b"Bearer ", b"Basic one", b"Bearer \xff"):
        with pytest.raises(AuthenticationError):
            auth.check_client(wrong)


def test_an_admin_key_closes_control_to_clients_and_opens_the_clients_routes() -> None:
    auth = Auth(["client"], ["admin"])
    auth.check_admin(b"Bearer admin")
    auth.check_client(b"Bearer admin")
    with pytest.raises(PermissionDeniedError):
        auth.check_admin(b"Bearer client")
    with pytest.raises(AuthenticationError):
        auth.check_admin(None)


def test_an_admin_key_alone_leaves_client_routes_open() -> None:
    auth = Auth([], ["admin"])
    auth.check_client(None)
    with pytest.raises(AuthenticationError):
        auth.check_admin(b"Bearer client")


def test_control_plane_keys_count_by_their_role() -> None:
    keys = ["1:ops:admin:k:with:colons", "2:viewer:user:k2"]
    assert admin_keys("root", keys) == ("root", "k:with:colons")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "172.16.0.9", "192.168.1.1", "100.64.0.1", "::1", "fd12::1"]
)
def test_pools_live_in_private_networks(address: str) -> None:
    WorkerGuard().check_address(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1",
        "100.100.100.200",
        "fd00:ec2::254",
        "192.0.0.192",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "255.255.255.255",
    ],
)
def test_metadata_and_special_addresses_are_never_workers(address: str) -> None:
    with pytest.raises(PermissionDeniedError):
        WorkerGuard(["*"]).check_address(ip_address(address))


def test_public_addresses_need_to_be_named() -> None:
    with pytest.raises(PermissionDeniedError, match="--worker-networks"):
        WorkerGuard().check_address(ip_address("8.8.8.8"))
    WorkerGuard(["8.8.8.0/24"]).check_address(ip_address("8.8.8.8"))
    WorkerGuard(["*"]).check_address(ip_address("8.8.8.8"))


async def test_urls_are_checked_by_what_they_resolve_to() -> None:
    await WorkerGuard().check_url("http://localhost:30000")
    with pytest.raises(PermissionDeniedError):
        await WorkerGuard().check_url("http://169.254.169.254:80/latest")
    with pytest.raises(PermissionDeniedError):
        await WorkerGuard().check_url("http://[::ffff:169.254.169.254]:80")
    with pytest.raises(BadRequestError, match="cannot be resolved"):
        await WorkerGuard().check_url("http://no-such-host.invalid:1")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer sk-sesame",
        "{'api_key': 'sk-sesame'}",
        "api-key=sk-sesame",
        "url data:image/png;base64,sk/sesame+AAAA",
        "blob " + "sksesame" * 40,
    ],
)
def test_keys_and_base64_do_not_reach_a_log(text: str) -> None:
    clean = redact(text)
    assert "sesame" not in clean and "[redacted]" in clean


def test_ordinary_messages_are_left_alone() -> None:
    text = "worker prefill-10.0.0.1-30000 is unhealthy: health check: timeout (id chatcmpl-0123456789abcdef)"
    assert redact(text) == text


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("sgl_epd_router.app", logging.WARNING, __file__, 1, message, (), None)
    vars(made).update(extra)
    return made


def test_json_lines_hold_the_message_and_its_extras() -> None:
    line = json.loads(JsonFormatter().format(record("hello Bearer sesame", worker="w1", status=502)))
    assert line["message"] == "hello Bearer [redacted]"
    assert (line["level"], line["worker"], line["status"]) == ("warning", "w1", 502)
    assert line["time"].endswith("Z")


def test_exceptions_are_cleaned_too() -> None:
    made = record("failed")
    try:
        raise ValueError("bad header Authorization: sesame")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    for formatter in (JsonFormatter(), TextFormatter()):
        text = formatter.format(made)
        assert "sesame" not in text and "ValueError" in text
