"""Reads what workers say about their load: `/v1/loads`, the ZMQ load stream, and stock encoders' counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sgl_epd.protocol.load import LoadReport as NativeReport
from sgl_epd_router.load import LoadReport
from sgl_epd_router.worker import Role

_COUNTER = re.compile(
    rb"^sglang:encoder_requests(?P<received>_received)?_total\{[^}\n]*\} (?P<value>[0-9.eE+-]+)", re.MULTILINE
)
_STUCK_S = 200.0
"""Longer than an encoder keeps any request (`SGLANG_ENCODER_REQ_TIMEOUT`, 180 s)."""


class RankLoad(msgspec.Struct):
    """One data-parallel rank in `/v1/loads` (SGLang: `managers/load_snapshot.py:LoadSnapshot`)."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0
    num_total_tokens: int = 0


class LoadsBody(msgspec.Struct):
    loads: list[RankLoad]


def parse_loads(body: bytes, role: Role, router_id: str = "") -> LoadReport:
    """The answer of `GET /v1/loads`: SGLang's, or of our own encode worker. Raises `ValueError` if it is none."""
    try:
        if role is Role.ENCODE:
            return native_report(msgspec.json.decode(body, type=NativeReport), router_id)
        return sum_ranks(msgspec.json.decode(body, type=LoadsBody).loads, role)
    except msgspec.DecodeError as error:
        raise ValueError(f"not an answer of /v1/loads: {error}") from error


def native_report(report: NativeReport, router_id: str) -> LoadReport:
    """What our own encode workers push."""
    return LoadReport(
        requests=report.waiting_items + report.running_items,
        patches=report.waiting_patches + report.running_patches,
        seq=report.seq,
        epoch=report.worker_id,
        seen=report.seen.get(router_id),
    )


def sum_ranks(ranks: Iterable[RankLoad], role: Role) -> LoadReport:
    """All ranks of a worker together, as the router sends to the worker and not to a rank."""
    ranks = list(ranks)
    return LoadReport(
        requests=sum(rank.num_running_reqs + rank.num_waiting_reqs for rank in ranks),
        tokens=sum(_tokens(rank, role) for rank in ranks),
    )


def _tokens(rank: RankLoad, role: Role) -> int:
    """Prefill works off uncached tokens; decode (and a worker that does both) is as slow as its KV is full."""
    if role is Role.PREFILL:
        return rank.num_waiting_uncached_tokens
    return max(rank.num_total_tokens, rank.num_used_tokens)


def parse_load_stat(frames: Sequence[bytes]) -> tuple[int, RankLoad]:
    """A message of the load stream: (sequence number, load). Raises `ValueError` if it is none.

    SGLang: `managers/scheduler_components/load_publisher.py:LoadStat`; positions are the wire contract.
    """
    if len(frames) != 3 or len(frames[1]) != 8:
        raise ValueError("not a message of the load stream")
    try:
        fields: list[Any] = msgspec.msgpack.decode(frames[2], type=list)
        tag, running, waiting, tokens = fields[:4]
        uncached = fields[6] if len(fields) > 6 else 0
        total = fields[7] if len(fields) > 7 else 0
        load = RankLoad(int(running), int(waiting), int(uncached), int(tokens), int(total))
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise ValueError(f"not a LoadStat: {error}") from error
    if tag != "LoadStat":
        raise ValueError(f"not a LoadStat but {tag!r}")
    return int.from_bytes(frames[1], "big", signed=True), load


class EncoderCounters:
    """A stock encoder's requests in flight: those it has received, less those it has ended.

    A request that ends on a path that upstream does not count would stay in the difference for ever. So a difference
    that has not moved for longer than any request lives is taken for such leftovers and no longer counted.
    """

    def __init__(self) -> None:
        self._last = (0.0, 0.0)
        self._moved_at = 0.0
        self._leftover = 0.0

    def observe(self, text: bytes, now: float) -> LoadReport:
        """The answer of `GET /metrics`. The counters are missing there until the first request has come."""
        received = ended = 0.0
        for match in _COUNTER.finditer(text):
            if match["received"]:
                received += float(match["value"])
            else:
                ended += float(match["value"])
        return LoadReport(requests=self._in_flight(received, ended, now))

    def _in_flight(self, received: float, ended: float, now: float) -> float:
        if received < self._last[0]:
            self._leftover = 0.0  # restarted
        if (received, ended) != self._last:
            self._last, self._moved_at = (received, ended), now
        difference = max(0.0, received - ended)
        if difference > self._leftover and now - self._moved_at > _STUCK_S:
            self._leftover = difference
        return max(0.0, difference - self._leftover)
