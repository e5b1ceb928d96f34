"""Changes to the pools that somebody asks for, as data: carried out here, or sent to the process that owns them."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import msgspec

from sgl_epd.errors import BadRequestError
from sgl_epd_router.registry import Registry
from sgl_epd_router.worker import WorkerSpec
from sgl_epd_router.worker_json import public_worker


class AddWorker(msgspec.Struct, frozen=True, tag=True):
    spec: WorkerSpec


class RemoveWorker(msgspec.Struct, frozen=True, tag=True):
    worker_id: str


class DrainWorker(msgspec.Struct, frozen=True, tag=True):
    worker_id: str
    draining: bool = True


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    worker_id: str


class UpdateWorker(msgspec.Struct, frozen=True, tag=True):
    """Only the fields that are given change."""

    worker_id: str
    changes: dict[str, Any]


class DrainRouter(msgspec.Struct, frozen=True, tag=True):
    draining: bool = True


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """Ends requests in whichever process serves them; `rid` of None means all."""

    rid: str | None


PoolCommand = AddWorker | RemoveWorker | DrainWorker | Heartbeat | UpdateWorker
Command = PoolCommand | DrainRouter | AbortRequests

CHANGEABLE = frozenset(
    {"model_id", "api_key", "priority", "cost", "labels", "bootstrap_port", "encoder_port", "heartbeat_ttl_s"}
)


def execute(registry: Registry, command: PoolCommand, now: float) -> dict[str, Any]:
    """Carry a command out; returns the worker as `GET /workers/{id}` shows it. Raises a `RequestError`."""
    if isinstance(command, AddWorker):
        worker = registry.add(command.spec, now)
    elif isinstance(command, RemoveWorker):
        worker = registry.remove(command.worker_id)
        registry.sweep(now)
    elif isinstance(command, DrainWorker):
        worker = registry.drain(command.worker_id, command.draining)
    elif isinstance(command, Heartbeat):
        worker = registry.heartbeat(command.worker_id, now)
    else:
        spec = registry.get(command.worker_id).spec
        worker = registry.update(command.worker_id, changed_spec(spec, command.changes))
    return public_worker(worker, now)


def changed_spec(spec: WorkerSpec, changes: dict[str, Any]) -> WorkerSpec:
    """Raises `BadRequestError` for what cannot change, or not to that."""
    fixed = sorted(set(changes) - CHANGEABLE)
    if fixed:
        raise BadRequestError(f"{fixed[0]} of a worker cannot change; remove it and add another", param=fixed[0])
    if changes.get("cost", 1.0) <= 0:
        raise BadRequestError("cost must be more than 0", param="cost")
    values = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)} | changes
    try:
        return msgspec.convert(values, WorkerSpec)
    except msgspec.ValidationError as error:
        raise BadRequestError(str(error)) from error


class PoolControl(Protocol):
    """Whoever owns the pools: this process, or the control process behind a socket."""

    @property
    def draining(self) -> bool: ...

    async def run(self, command: Command) -> dict[str, Any]:
        """Raises what `execute` raises, and `UnavailableError` when the owner cannot be reached."""
