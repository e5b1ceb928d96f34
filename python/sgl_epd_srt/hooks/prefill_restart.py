"""A decode worker notices that a prefill worker has been replaced, however quickly that went.

Upstream: `sglang.srt.disaggregation.common.conn.CommonKVManager._on_heartbeat_success` (0.5.23). Decode remembers the
ports of each prefill's ranks and asks only whether *some* process answers on the bootstrap port. One that dies and is
back before two heartbeats have failed (10 s; a supervised worker on a warm machine is faster) is taken for the old
one: decode sends its addresses to ports that nobody reads, and every request waits for 300 s. So each heartbeat also
asks whether the ranks are where decode believes them, and if not, treats the old ones as lost (`_handle_node_failure`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sgl_epd_srt.upstream import expect, wrap

logger = logging.getLogger(__name__)
_MANAGER = "sglang.srt.disaggregation.common.conn.CommonKVManager"
_RECEIVER = "sglang.srt.disaggregation.common.conn.CommonKVReceiver"
_TIMEOUT_S = 3.0


def install() -> None:
    wrap(f"{_MANAGER}._on_heartbeat_success", "4af289d193de", _check_ranks)
    expect(f"{_MANAGER}._handle_node_failure", "d2632ebeb3da")
    expect(f"{_RECEIVER}._setup_bootstrap_infos", "fe1cf611d3f2")


def _check_ranks(original: Callable[..., None], manager: Any, bootstrap_addr: str) -> None:
    original(manager, bootstrap_addr)
    with manager.connection_lock:
        known = {key: list(infos) for key, infos in manager.connection_pool.items() if _of(key, bootstrap_addr)}
    with manager.session_pool_lock:
        session = manager.session_pool[bootstrap_addr]
    for key, infos in known.items():
        if not _still_there(session, bootstrap_addr, key, infos):
            logger.warning("The prefill worker at %s has been replaced; its connections are made anew", bootstrap_addr)
            manager._handle_node_failure(bootstrap_addr)
            return


def _of(key: str, bootstrap_addr: str) -> bool:
    return key.rsplit("_", 3)[0] == bootstrap_addr


def _still_there(session: Any, bootstrap_addr: str, key: str, infos: list[dict[str, Any]]) -> bool:
    """Whether the rank that `key` names (`{addr}_{dp}_{cp}_{tp}`) is at one of the addresses of `infos`.

    A dead connection raises, which upstream's caller counts as a missed heartbeat.
    """
    _, dp_rank, cp_rank, tp_rank = key.rsplit("_", 3)
    rank = {
        "prefill_dp_rank": dp_rank,
        "prefill_cp_rank": cp_rank,
        "target_tp_rank": "0" if tp_rank == "None" else tp_rank,  # None: decode has asked for all ranks
        "target_pp_rank": infos[0]["pp_rank"],
    }
    response = session.get(f"http://{bootstrap_addr}/route", params=rank, timeout=_TIMEOUT_S)
    if response.status_code != 200:
        return False  # a new process, in which the rank has not registered yet
    found = response.json()
    return any((info["rank_ip"], info["rank_port"]) == (found["rank_ip"], found["rank_port"]) for info in infos)
