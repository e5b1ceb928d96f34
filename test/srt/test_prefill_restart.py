"""Decode finds out that a prefill worker was replaced between two heartbeats."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from sgl_epd_srt.hooks import prefill_restart

ADDR = "10.0.0.1:8998"
RANK = {"rank_ip": "10.0.0.1", "rank_port": 40001, "pp_rank": 0}


class Answer:
    def __init__(self, status_code: int, data: dict[str, Any] | None = None) -> None:
        self.status_code, self._data = status_code, data

    def json(self) -> Any:
        return self._data


class Session:
    def __init__(self, answer: Answer | Exception) -> None:
        self.answer, self.asked = answer, []

    def get(self, url: str, *, params: dict[str, Any], timeout: float) -> Answer:
        self.asked.append((url, params))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Manager:
    def __init__(self, pool: dict[str, list[dict[str, Any]]], answer: Answer | Exception) -> None:
        self.connection_lock, self.session_pool_lock = threading.Lock(), threading.Lock()
        self.connection_pool, self.failed, self.session = pool, [], Session(answer)
        self.session_pool = defaultdict(lambda: self.session)

    def _handle_node_failure(self, addr: str) -> None:
        self.failed.append(addr)


def heartbeat(pool: dict[str, list[dict[str, Any]]], answer: Answer | Exception) -> Manager:
    manager, called = Manager(pool, answer), []
    prefill_restart._check_ranks(lambda *args: called.append(args), manager, ADDR)
    assert called == [(manager, ADDR)]
    return manager


def test_the_same_ranks_are_left_alone() -> None:
    manager = heartbeat({f"{ADDR}_0_1_2": [RANK]}, Answer(200, {"rank_ip": "10.0.0.1", "rank_port": 40001}))
    assert manager.failed == []
    asked = {"prefill_dp_rank": "0", "prefill_cp_rank": "1", "target_tp_rank": "2", "target_pp_rank": 0}
    assert manager.session.asked == [(f"http://{ADDR}/route", asked)]


@pytest.mark.parametrize(
    "answer", [Answer(200, {"rank_ip": "10.0.0.1", "rank_port": 40002}), Answer(503), Answer(404)], ids=str
)
def test_replaced_ranks_are_lost(answer: Answer) -> None:
    assert heartbeat({f"{ADDR}_0_0_None": [RANK]}, answer).failed == [ADDR]


def test_one_that_ends_meanwhile_counts_as_a_missed_heartbeat() -> None:
    with pytest.raises(ConnectionError):
        heartbeat({f"{ADDR}_0_0_0": [RANK]}, ConnectionError("refused"))


def test_others_are_not_asked() -> None:
    manager = heartbeat({"10.0.0.1:89981_0_0_0": [RANK], "10.0.0.2:8998_0_0_0": [RANK]}, Answer(404))
    assert (manager.failed, manager.session.asked) == ([], [])
