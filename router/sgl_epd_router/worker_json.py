"""Workers as the control routes take and show them. Field names are SGLang's gateway's; keys are never shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from sgl_epd.errors import BadRequestError
from sgl_epd_router.worker import Role, Source, Worker, WorkerSpec

_ROLES = {"mixed": Role.REGULAR} | {role.value: role for role in Role}


class WorkerBody(msgspec.Struct):
    """Body of `POST /workers`. Fields of the gateway that mean nothing here (`tokenizer_path`, ...) are ignored."""

    url: str
    worker_type: str = Role.REGULAR.value
    model_id: str | None = None
    priority: int = 50
    cost: float = 1.0
    labels: dict[str, str] = {}
    api_key: str | None = None
    bootstrap_port: int | None = None
    encoder_bootstrap_port: int | None = None
    heartbeat_ttl_secs: float | None = None
    """Given by workers that register themselves: they are forgotten after so long without a heartbeat."""


class WorkerChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `PUT /workers/{id}`: what may change in place."""

    model_id: str | msgspec.UnsetType | None = msgspec.UNSET
    api_key: str | msgspec.UnsetType | None = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET
    cost: float | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    bootstrap_port: int | msgspec.UnsetType | None = msgspec.UNSET
    encoder_bootstrap_port: int | msgspec.UnsetType | None = msgspec.UNSET
    heartbeat_ttl_secs: float | msgspec.UnsetType | None = msgspec.UNSET


_RENAMED = {"encoder_bootstrap_port": "encoder_port", "heartbeat_ttl_secs": "heartbeat_ttl_s"}


def spec_from_body(body: bytes | bytearray, default_key: str | None, encoder_port: int) -> WorkerSpec:
    """Raises `BadRequestError` with the field that is wrong."""
    given = _decode(body, WorkerBody)
    role = _ROLES.get(given.worker_type.lower())
    if role is None:
        names = ", ".join(_ROLES)
        raise BadRequestError(f"worker_type {given.worker_type!r} is not one of {names}", param="worker_type")
    if given.cost <= 0:
        raise BadRequestError("cost must be more than 0", param="cost")
    for port in (given.bootstrap_port, given.encoder_bootstrap_port):
        if port is not None and not 0 < port < 65536:
            raise BadRequestError(f"{port} is not a port number", param="bootstrap_port")
    return WorkerSpec(
        given.url,
        role,
        bootstrap_port=given.bootstrap_port,
        encoder_port=given.encoder_bootstrap_port or encoder_port,
        model_id=given.model_id,
        api_key=given.api_key or default_key,
        priority=given.priority,
        cost=given.cost,
        labels=tuple(sorted(given.labels.items())),
        source=Source.API if given.heartbeat_ttl_secs is None else Source.REGISTERED,
        heartbeat_ttl_s=given.heartbeat_ttl_secs,
    )


def changes_from_body(body: bytes | bytearray) -> dict[str, Any]:
    """The given fields under the names of `WorkerSpec`."""
    given = msgspec.structs.asdict(_decode(body, WorkerChanges))
    changes = {_RENAMED.get(name, name): value for name, value in given.items() if value is not msgspec.UNSET}
    if "labels" in changes:
        changes["labels"] = tuple(sorted(changes["labels"].items()))
    return changes


def public_worker(worker: Worker, now: float) -> dict[str, Any]:
    """One worker for `GET /workers`: the gateway's fields first, then what this router knows besides."""
    requests, work = worker.load.view(now)
    spec = worker.spec
    shown: dict[str, Any] = {
        "id": worker.id,
        "url": worker.url,
        "model_id": spec.model_id or "unknown",
        "priority": spec.priority,
        "cost": spec.cost,
        "worker_type": worker.role.value,
        "is_healthy": worker.health.healthy,
        "load": round(requests, 3),
        "connection_mode": "http",
        "labels": dict(spec.labels),
        "state": worker.state,
        "reason": worker.health.reason,
        "inflight": worker.load.own.requests,
        "work": round(work, 1),
        "circuit_breaker": worker.breaker.state.value,
        "source": spec.source.value,
    }
    if spec.bootstrap_port is not None:
        shown["bootstrap_port"] = spec.bootstrap_port
    if worker.load.report is not None:
        report = worker.load.report
        shown["last_report"] = {
            "age_secs": round(now - worker.load.correction.at, 3),
            "requests": report.requests,
            "tokens": report.tokens,
            "patches": report.patches,
        }
    return shown


def public_workers(workers: Iterable[Worker], now: float) -> dict[str, Any]:
    """The answer of `GET /workers`."""
    shown = [public_worker(worker, now) for worker in workers]
    counts = {f"{role.value}_count": sum(one["worker_type"] == role.value for one in shown) for role in Role}
    return {"workers": shown, "total": len(shown), "stats": counts}


T = TypeVar("T")


def _decode(body: bytes | bytearray, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise BadRequestError(str(error)) from error
