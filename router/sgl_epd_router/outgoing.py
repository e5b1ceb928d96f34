"""What is sent to workers for a client's request: the same bytes for every leg and attempt, but for a short tail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from sgl_epd.net.call import Buffer
from sgl_epd.net.exchange import Exchange
from sgl_epd.net.headers import HOP_BY_HOP, RawHeaders, connection_options, encode_headers
from sgl_epd_router.body import splice
from sgl_epd_router.rooms import new_rid, new_room, worker_mark
from sgl_epd_router.route_key import EMPTY_KEY, RouteKey
from sgl_epd_router.worker import Role, Worker

_NOT_FORWARDED = HOP_BY_HOP | {
    *(b"host", b"content-length", b"expect", b"accept-encoding", b"authorization", b"x-api-key"),
    # SGLang can take these in place of the body's fields (`entrypoints/request_headers.py`): they are the router's.
    *(b"x-override-rid", b"x-override-bootstrap-host", b"x-override-bootstrap-port", b"x-override-bootstrap-room"),
}
_NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"date", b"server"}


def forwarded_headers(exchange: Exchange, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """The client's headers without those that belong to its connection.

    `accept-encoding` stays here, too: the router reads events and must not get them compressed.
    """
    options = connection_options(exchange.headers)
    return [
        (name, value)
        for name, value in exchange.headers
        if name not in _NOT_FORWARDED and name not in options and name not in drop
    ]


def returned_headers(headers: RawHeaders, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """A worker's headers without those that belong to its connection."""
    options = connection_options(headers)
    return [
        (name, value)
        for name, value in headers
        if name not in _NOT_RETURNED and name not in options and name not in drop
    ]


@dataclasses.dataclass(slots=True)
class Outgoing:
    """A client's request, ready to be sent any number of times."""

    method: str
    target: str
    headers: bytes
    """Encoded header lines, without authorization."""
    authorization: bytes | None
    """The client's own; used for workers that have no key of theirs."""
    body: Buffer
    key: RouteKey = EMPTY_KEY
    role: Role | None = None
    """One worker of this role serves the request; None: prefill and decode workers do, or an aggregated one."""
    only: str | None = None
    """Id of the only worker that may serve it (one that holds the client's state)."""
    stream: bool = False
    batch: int | None = None
    id_field: str | None = "rid"
    """Name of the request-id field in the body; None when the API has none."""
    id_prefix: str = ""
    public_ids: tuple[str, ...] = ()
    """The ids by which the client knows the request, one for each prompt, if it chose any."""
    prompt_logprobs: bool = False
    """The answer must carry data about the prompt that only the prefill worker has."""
    names_worker: bool = False
    """The id carries a mark of the worker that answers, so that it can be found again by the id."""
    prelude: tuple[bytes, ...] = ()
    """Beginnings of events that a worker sends before it has done anything."""
    end_marks: tuple[bytes, ...] = (b"data: [DONE]",)
    """One of them stands in the last piece of a whole stream; none: any end will do."""

    def release(self) -> None:
        """It will not be sent again: do not hold an image of megabytes for as long as the answer streams."""
        self.body = b""
        self.key = EMPTY_KEY


@dataclasses.dataclass(frozen=True, slots=True)
class AttemptIds:
    """Names of one attempt; never used again, so that a late message of a failed attempt cannot meet the next one."""

    rids: tuple[str, ...]
    room: int

    @classmethod
    def new(cls, outgoing: Outgoing, worker: Worker) -> AttemptIds:
        """`worker` is the one that answers."""
        rid = outgoing.id_prefix + new_rid(worker_mark(worker.id) if outgoing.names_worker else "")
        if outgoing.batch is None:
            return cls((rid,), new_room())
        # Of equal length, because `/abort_request` matches by prefix.
        return cls(tuple([f"{rid}-{i:06d}" for i in range(outgoing.batch)]), new_room())


def request_parts(outgoing: Outgoing, ids: AttemptIds, prefill: Worker | None) -> list[Buffer]:
    """The body's pieces for all legs of an attempt. `prefill` is the worker whose KV the decode worker fetches."""
    fields: list[bytes] = []
    if outgoing.id_field:
        value = ids.rids[0] if outgoing.batch is None else ids.rids
        fields.append(b'"%b":%b' % (outgoing.id_field.encode(), msgspec.json.encode(value)))
    if prefill is not None:
        # One room, also for a batch: SGLang gives its items the rooms that follow (`_normalize_bootstrap_params`),
        # where a list would be repeated and shared when n > 1.
        host = f"[{prefill.host}]" if ":" in prefill.host else prefill.host
        port = b"null" if prefill.bootstrap_port is None else b"%d" % prefill.bootstrap_port
        fields.append(
            b'"bootstrap_host":%b,"bootstrap_port":%b,"bootstrap_room":%d' % (msgspec.json.encode(host), port, ids.room)
        )
    return splice(outgoing.body, b",".join(fields)) if fields else [outgoing.body]


def leg_headers(outgoing: Outgoing, worker: Worker) -> bytes:
    if worker.api_key:
        return outgoing.headers + encode_headers([(b"authorization", b"Bearer " + worker.api_key.encode())])
    if outgoing.authorization is not None:
        return outgoing.headers + encode_headers([(b"authorization", outgoing.authorization)])
    return outgoing.headers


class IdRewriter:
    """Puts the client's own ids back into answers, which carry those that the router gave to the attempt."""

    __slots__ = ("_pairs",)

    def __init__(self, public_ids: Sequence[str], rids: Sequence[str]) -> None:
        # As they stand inside JSON strings.
        pairs = zip(rids, public_ids, strict=False)
        self._pairs = [(rid.encode(), msgspec.json.encode(public)[1:-1]) for rid, public in pairs]

    def __call__(self, data: bytes) -> bytes:
        for rid, public in self._pairs:
            data = data.replace(rid, public)
        return data
