"""A worker makes itself known to routers and keeps being known: `--register http://router:30000`.

A small process of its own beside the worker (`python -m sgl_epd.worker.register`, description as JSON on stdin), since
the worker's process forks its engine and must have no other threads then. It dies with the worker; each router forgets
a worker whose heartbeats stop, and one that it does not know (404: it was restarted) gets the worker registered anew.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from sgl_epd.errors import ConfigError, EpdError

HEARTBEAT_S = 5.0
TTL_S = 20.0
"""A router forgets the worker after so long without a heartbeat."""
REQUEST_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1


class RefusedError(EpdError):
    """A router answered that it will not take this worker; asking again would not change that."""


@dataclasses.dataclass(frozen=True)
class Registration:
    """`routers`: base URLs. `worker`: the body of `POST /workers` (see docs/router.md). `admin_key`: for the routers'
    control routes, if they ask for one."""

    routers: tuple[str, ...]
    worker: Mapping[str, Any]
    admin_key: str | None = None

    def __post_init__(self) -> None:
        for router in self.routers:
            if not router.startswith(("http://", "https://")):
                raise ConfigError(f"--register {router}: give the router's URL, such as http://router:30000")


class Registrar:
    """Keeps one worker registered with one router. `call(method, path, body)` returns status and decoded body, raises
    `OSError` when the router cannot be reached. Pure but for `call`; `tick` is to be called every `HEARTBEAT_S`."""

    def __init__(self, worker: Mapping[str, Any], call: Callable[[str, str, Any], tuple[int, Any]]) -> None:
        self._worker = {**worker, "heartbeat_ttl_secs": TTL_S}
        self._call = call
        self.worker_id: str | None = None

    def tick(self) -> str:
        """One sign of life. Returns a line for the log, empty when nothing changed. Raises `RefusedError`."""
        try:
            return self._register() if self.worker_id is None else self._beat()
        except OSError as error:
            return f"cannot reach the router: {error}"

    def leave(self) -> None:
        """The worker ends: the router need not find out by itself."""
        if self.worker_id is not None:
            self._call("DELETE", f"/workers/{self.worker_id}", None)

    def _register(self) -> str:
        status, answer = self._call("POST", "/workers", self._worker)
        if status in (200, 202):
            self.worker_id = str(answer["worker_id"])
            return f"registered as {self.worker_id}"
        message = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
        if status in (400, 401, 403, 404, 405):
            raise RefusedError(f"the router refuses this worker ({status}): {message}")
        return f"not registered yet ({status}): {message}"

    def _beat(self) -> str:
        status, _ = self._call("PUT", f"/workers/{self.worker_id}/heartbeat", None)
        if status == 404:
            self.worker_id = None
            return self._register()
        return "" if status == 200 else f"heartbeat answered with {status}"


def http_call(router: str, admin_key: str | None) -> Callable[[str, str, Any], tuple[int, Any]]:
    """`Registrar.call` over HTTP."""

    def call(method: str, path: str, body: Any) -> tuple[int, Any]:
        headers = {"content-type": "application/json"}
        if admin_key:
            headers["authorization"] = f"Bearer {admin_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(router.rstrip("/") + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as reply:
                return reply.status, json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _json_or_none(error.read())

    return call


def _json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def start(registration: Registration) -> None:
    """Start the process that registers this worker; it ends when this process does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sgl_epd.worker.register", str(os.getpid())], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    # On stdin, since a command line is readable by everybody on the host and this holds a key.
    process.stdin.write(json.dumps(dataclasses.asdict(registration)).encode())
    process.stdin.close()


def main() -> int:
    """The process itself: one argument, the worker's process id; the registration on stdin."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    given = json.load(sys.stdin)
    registrars = {
        router: Registrar(given["worker"], http_call(router, given["admin_key"])) for router in given["routers"]
    }
    ending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: ending.append(number))
    said: dict[str, str] = {}
    while not ending and os.getppid() == parent:
        for router, registrar in list(registrars.items()):
            try:
                line = registrar.tick()
            except RefusedError as error:
                line = str(error)
                del registrars[router]
            if line != said.get(router, ""):
                said[router] = line
                print(f"register {router}: {line or 'fine again'}", file=sys.stderr, flush=True)
        _sleep(ending)
    for registrar in registrars.values():
        try:
            registrar.leave()
        except OSError as error:
            print(f"could not sign off: {error}", file=sys.stderr)
    return 0


def _sleep(ending: list[int]) -> None:
    """Up to a heartbeat, less when asked to end (a handler that only appends does not interrupt a sleep)."""
    until = time.monotonic() + HEARTBEAT_S
    while not ending and time.monotonic() < until:
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
