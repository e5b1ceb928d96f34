"""Ending what a request has started elsewhere: aborts on workers, and the ids by which clients may ask for them.

Closing the connection alone is not enough: SGLang looks for a closed connection only every four seconds
(`SGLANG_REQUEST_STATE_WAIT_TIMEOUT`), and a decode worker whose prefill is gone waits 300 s for its KV.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from sgl_epd.errors import TransportError
from sgl_epd.net.call import Call
from sgl_epd.net.client import HttpClient
from sgl_epd.net.headers import RawHeaders
from sgl_epd_router.worker import Worker

_TIMEOUT_S = 5.0
_REPEAT_AFTER_S = 1.0


def worker_headers(worker: Worker) -> RawHeaders:
    """Headers of the router's own requests to a worker."""
    headers: RawHeaders = [(b"content-type", b"application/json")]
    if worker.api_key:
        headers.append((b"authorization", b"Bearer " + worker.api_key.encode()))
    return headers


class Aborter:
    """Sends `POST /abort_request` without anyone waiting for the answer."""

    def __init__(self, client: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self.sent = 0

    def abort(self, worker: Worker, rids: Sequence[str], *, registered: bool) -> None:
        """Abort the requests `rids` on `worker`.

        A worker ignores ids that it does not know yet, and it learns an id only after it has parsed and templated the
        request. So unless the request is `registered` (the worker has begun to answer), the abort is repeated.
        """
        self._send(worker, rids)
        if not registered:
            self._loop.call_later(_REPEAT_AFTER_S, self._send, worker, rids)

    def _send(self, worker: Worker, rids: Sequence[str]) -> None:
        if self._client.closed:
            return
        origin = self._client.origin(worker.url)
        for rid in rids:
            sink = _Ignore()
            body = msgspec.json.encode({"rid": rid})
            sink.call = self._client.send(
                origin, "POST", origin.path + "/abort_request", sink, headers=worker_headers(worker), body=[body]
            )
            sink.timer = self._loop.call_later(_TIMEOUT_S, sink.call.cancel)
            self.sent += 1


class _Ignore:
    """Sink of an abort: whatever the answer is, nothing more can be done."""

    call: Call | None = None
    timer: asyncio.TimerHandle | None = None

    def on_head(self, status: int, headers: RawHeaders) -> None:
        pass

    def on_data(self, data: bytes) -> None:
        pass

    def on_end(self) -> None:
        self.call = None
        if self.timer is not None:
            self.timer.cancel()

    def on_error(self, error: TransportError) -> None:
        self.on_end()


class Abortable(Protocol):
    """A request in flight that a client may abort by id."""

    def request_abort(self) -> None: ...


class RequestIds:
    """Requests in flight by the ids that their clients know them by."""

    def __init__(self) -> None:
        self._requests: dict[str, list[Abortable]] = {}

    def add(self, request_id: str, request: Abortable) -> None:
        self._requests.setdefault(request_id, []).append(request)

    def discard(self, request_id: str, request: Abortable) -> None:
        requests = self._requests.get(request_id)
        if requests is None:
            return
        if request in requests:
            requests.remove(request)
        if not requests:
            del self._requests[request_id]

    def find(self, request_id: str) -> Iterator[Abortable]:
        """Exact ids only: a prefix would end other clients' requests too."""
        yield from tuple(self._requests.get(request_id, ()))

    def all(self) -> Iterator[Abortable]:
        for requests in tuple(self._requests.values()):
            yield from tuple(requests)

    def __len__(self) -> int:
        return len(self._requests)
