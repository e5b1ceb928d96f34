"""One health check of one worker, and one look at what it says it is."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from sgl_epd.errors import ConnectError, TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd_router.cancel import worker_headers
from sgl_epd_router.health import HealthConfig, Probe
from sgl_epd_router.worker import Role, Worker

logger = logging.getLogger(__name__)
_INFO_TIMEOUT_S = 10.0


async def probe(worker: Worker, client: HttpClient, config: HealthConfig) -> Probe:
    url = worker.url + config.endpoint
    try:
        reply = await client.fetch("GET", url, headers=worker_headers(worker), timeout_s=config.timeout_s)
    except TimeoutError:
        return Probe.TIMEOUT
    except ConnectError:
        return Probe.UNREACHABLE
    except TransportError:
        return Probe.BAD_STATUS
    return Probe.OK if reply.status == 200 else Probe.BAD_STATUS


async def server_info(worker: Worker, client: HttpClient) -> dict[str, Any]:
    """A worker's `/server_info`; empty where there is none (stock encoders) or it cannot be had now."""
    url = worker.url + "/server_info"
    try:
        reply = await client.fetch("GET", url, headers=worker_headers(worker), timeout_s=_INFO_TIMEOUT_S)
        info = msgspec.json.decode(reply.body) if reply.status == 200 else {}
    except (TransportError, TimeoutError, msgspec.DecodeError):
        return {}
    return info if isinstance(info, dict) else {}


def role_mismatch(worker: Worker, info: dict[str, Any]) -> str | None:
    """What is wrong, in words, when a worker is listed under another role than it was started for."""
    mode = info.get("disaggregation_mode")
    expected = {Role.PREFILL: "prefill", Role.DECODE: "decode", Role.REGULAR: "null"}.get(worker.role)
    if not isinstance(mode, str) or expected is None or mode == expected:
        return None
    return f"{worker.url} is listed as {worker.role}, but was started with --disaggregation-mode {mode}"


def bootstrap_port(worker: Worker, info: dict[str, Any]) -> int | None:
    """The port of a prefill worker's bootstrap server, where nobody has named it."""
    port = info.get("disaggregation_bootstrap_port")
    wanted = worker.role is Role.PREFILL and worker.bootstrap_port is None
    return port if wanted and isinstance(port, int) else None
