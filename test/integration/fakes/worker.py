"""A fake SGLang 0.5.23 server: prefill, decode, or aggregated ("regular").

To a router it looks like the real one: the same routes, reply shapes, rules for request ids, rooms and aborts. Inside
there is no model: answers follow from the body (`answers.py`), prefill and decode meet in rooms (`kv.py`), and faults
come from a script (`faults.py`). Everything that was received is kept for the test to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import answers
from .encoder_list import EncodeError, EncoderList, media_items
from .faults import Fault
from .info import info_routes
from .kv import KvFabric
from .wire import Connection, Request, Server

INFERENCE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate")
DISCONNECT_POLL_S = 0.2
"""SGLang looks only every few seconds whether a client is still there (`_REQUEST_STATE_WAIT_TIMEOUT`) and works on till
then, unless it is told by `/abort_request`; here the few seconds are shorter."""


@dataclass
class Received:
    """One inference request at one worker, and what became of it."""

    request: Request
    body: dict[str, Any]
    rids: list[str]
    rooms: list[tuple[str, int, int]]
    outcome: str = "running"
    """running, finished, aborted (by /abort_request), disconnected, failed (by a fault)"""
    events_sent: int = 0
    fault: Fault | None = None
    abort_called: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def rid(self) -> str | None:
        value = self.body.get("rid")
        return value if isinstance(value, str) else None


class FakeWorker:
    """Start with `await start()`; `kill()` and `start()` again for a crash and a return on the same port."""

    def __init__(
        self, role: str, fabric: KvFabric | None = None, *, name: str = "", api_key: str | None = None
    ) -> None:
        self.role, self.fabric, self.name, self.api_key = role, fabric or KvFabric(), name or role, api_key
        self.server = Server(self._serve)
        self.port = 0
        self.bootstrap_port = 8998
        self.encoders = EncoderList()
        self.requests: list[Received] = []
        self.control: list[Request] = []
        self.aborts: list[str] = []
        self.live: dict[str, Received] = {}
        self.health_status = 200
        self.health_gate: asyncio.Event | None = None
        self.extra_load: dict[str, int] = {}
        self.flush_status = 200
        self._script: list[tuple[Fault, Callable[[Received], bool]]] = []
        self._arrivals = asyncio.Condition()
        self.info = info_routes(self)

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> FakeWorker:
        self.port = await self.server.start(self.port)
        if self.role != "decode":
            await self.encoders.start()
        return self

    async def kill(self) -> None:
        """As `kill -9`: the port refuses, connections are reset, nothing is remembered."""
        await self.server.stop(reset=True)
        self.live.clear()

    async def stop(self) -> None:
        await self.server.stop(reset=False)
        await self.encoders.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- script and observation ------------------------------------------------------------------------------------

    def script(self, *faults: Fault, when: Callable[[Received], bool] = lambda _: True) -> Fault:
        """The next requests that match get these faults, one each, in order. Returns the last one."""
        self._script += [(fault, when) for fault in faults]
        return faults[-1]

    async def arrived(self, count: int = 1) -> Received:
        """Wait until `count` inference requests have come in; the latest of them."""
        async with self._arrivals:
            await self._arrivals.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(Counter(r.outcome for r in self.requests))

    @property
    def open_connections(self) -> int:
        return len(self.server.connections)

    # -- serving ---------------------------------------------------------------------------------------------------

    async def _serve(self, connection: Connection, request: Request) -> None:
        open_paths = ("/health", "/health_generate", "/ready")
        if (
            self.api_key
            and request.path not in open_paths
            and request.header("authorization") != f"Bearer {self.api_key}"
        ):
            await connection.reply_json({"error": "Unauthorized"}, 401)
        elif request.path in INFERENCE and request.method == "POST":
            await self._infer(connection, request)
        else:
            self.control.append(request)
            await self._serve_control(connection, request)

    async def _serve_control(self, connection: Connection, request: Request) -> None:
        if request.path == "/abort_request":
            self._abort(request.json())
            await connection.reply(200)
        elif request.path in ("/health", "/health_generate"):
            if self.health_gate is not None:
                await self.health_gate.wait()
            await connection.reply(self.health_status)
        elif request.path == "/flush_cache":
            text = "Cache flushed.\n" if self.flush_status == 200 else "Flush cache failed.\n"
            await connection.reply(self.flush_status, text.encode(), "text/plain; charset=utf-8")
        elif request.path in self.info:
            await connection.reply_json(self.info[request.path](request))
        else:
            await connection.reply_json({"detail": "Not Found"}, 404)

    def _abort(self, body: dict[str, Any]) -> None:
        """`TokenizerManager.abort_request`: unknown ids are ignored, a known one matches as a prefix."""
        rid = body.get("rid") or ""
        self.aborts.append(rid)
        if not body.get("abort_all") and rid not in self.live:
            return
        for key, leg in list(self.live.items()):
            if body.get("abort_all") or key.startswith(rid):
                leg.abort_called.set()

    async def _infer(self, connection: Connection, request: Request) -> None:
        try:
            leg = self._read(request)
        except ValueError as problem:
            await connection.reply_json(answers.error(400, str(problem), "Bad Request"), 400)
            return
        await self._register(leg)
        work = asyncio.ensure_future(self._run(connection, leg))
        aborted = asyncio.ensure_future(leg.abort_called.wait())
        try:
            await asyncio.wait({work, aborted}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                work.cancel()
                await asyncio.wait({work})
                leg.outcome = "aborted"
                await self._answer_abort(connection, leg)
        except asyncio.CancelledError:
            await self._client_gone(leg)
            raise
        except ConnectionError:
            await self._client_gone(leg)
        finally:
            self._unregister(leg)
            for task in (work, aborted):
                task.cancel()
            await asyncio.gather(work, aborted, return_exceptions=True)

    async def _client_gone(self, leg: Received) -> None:
        """The request runs on until an abort comes or the server looks for its client."""
        if leg.outcome != "running":
            return
        if self.server.listening:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISCONNECT_POLL_S):
                    await leg.abort_called.wait()
        leg.outcome = "aborted" if leg.abort_called.is_set() else "disconnected"

    def _read(self, request: Request) -> Received:
        body = request.json()
        if not isinstance(body, dict):
            raise ValueError("the body must be an object")
        count = answers.width(request.path, body)
        return Received(request, body, self._rids(body, request.path, count), self._rooms(body, request.path, count))

    def _rids(self, body: dict[str, Any], path: str, count: int) -> list[str]:
        """`GenerateReqInput._normalize_rid`; parallel samples get ids of their own that no router can know."""
        rid = body.get("rid")
        if count > answers.batch_size(path, body):
            return [uuid.uuid4().hex for _ in range(count)]
        if isinstance(rid, list):
            if len(rid) != count:
                raise ValueError("The specified rids length mismatch with the batch_size for batch processing.")
            return [str(part) for part in rid]
        base = str(rid or uuid.uuid4().hex)
        listed = answers.is_batch(path, body)
        return [f"{base}_{i}" for i in range(count)] if listed else [base]

    def _rooms(self, body: dict[str, Any], path: str, count: int) -> list[tuple[str, int, int]]:
        """One room for each sequence: of a batch, a number counts upwards (`_normalize_bootstrap_params`).

        The `n` samples of a prompt all get their prompt's room (`_handle_batch_request` copies the tokenized request),
        in which only the first of them finds a partner: a router must not ask for more than one.
        """
        if self.role == "regular":
            return []
        host, port, room = (body.get(f"bootstrap_{name}") for name in ("host", "port", "room"))
        if room is None:
            raise ValueError("Disaggregated request received without bootstrap room id")
        batch = answers.batch_size(path, body)

        def spread(value: Any, step: int = 0) -> list[Any]:
            return value if isinstance(value, list) else [value + i * step if step else value for i in range(batch)]

        prompts = zip(spread(host), spread(port), spread(room, 1), strict=True)
        return [place for place in prompts for _ in range(count // batch)]

    async def _register(self, leg: Received) -> None:
        async with self._arrivals:
            self.requests.append(leg)
            self.live.update(dict.fromkeys(leg.rids, leg))
            self._arrivals.notify_all()

    def _unregister(self, leg: Received) -> None:
        for rid in leg.rids:
            if self.live.get(rid) is leg:
                del self.live[rid]
        leg.ended.set()

    def _take_fault(self, leg: Received) -> Fault | None:
        for place, (fault, when) in enumerate(self._script):
            if when(leg):
                del self._script[place]
                return fault
        return None

    async def _run(self, connection: Connection, leg: Received) -> None:
        leg.fault = self._take_fault(leg)
        if leg.fault and await leg.fault.on_request(self, connection, leg):
            return
        if self.role != "decode" and self.encoders.urls and media_items(leg.body):
            try:
                await self.encoders.encode(leg.body, leg.rids[0])
            except EncodeError as problem:
                leg.outcome = "failed"
                await connection.reply_json(answers.error(problem.status, str(problem)), problem.status)
                return
        side_digest = answers.digest(leg.body)
        await asyncio.gather(*(self.fabric.meet(self.role, room, side_digest) for room in leg.rooms))
        await self._answer(connection, leg)
        leg.outcome = leg.outcome if leg.outcome == "failed" else "finished"

    async def _answer(self, connection: Connection, leg: Received) -> None:
        path, body = leg.request.path, leg.body
        if self.role == "prefill":
            # One token, as after a real prefill; marked, so that a router that passes it on is caught.
            body = {**body, "side": "prefill", "max_tokens": 1}
        elif self.role == "decode":
            body = {**body, answers.DECODE_SIDE: True}
        if not leg.stream:
            await connection.reply_json(answers.whole(path, body, leg.rids))
            return
        await connection.start_stream()
        for index, event in enumerate(answers.events(path, body, leg.rids)):
            if leg.fault and await leg.fault.on_event(self, connection, leg, index):
                return
            await connection.chunk(event)
            leg.events_sent += 1
            await asyncio.sleep(0)
        if path != "/v1/responses":
            await connection.chunk(b"data: [DONE]\n\n")
        await connection.end_stream()

    async def _answer_abort(self, connection: Connection, leg: Received) -> None:
        """A graceful abort: an ordinary answer that ends early, with the finish reason "abort"."""
        path = leg.request.path
        if not leg.stream:
            await connection.reply_json(answers.whole(path, {**leg.body, "max_tokens": 0}, leg.rids, "abort"))
            return
        if not leg.events_sent:
            await connection.start_stream()
        last = answers.events(path, {**leg.body, "max_tokens": 1}, leg.rids, "abort")[-1]
        await connection.chunk(last)
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.end_stream()
