"""Let an idle scheduler sleep without making a request that waits for embeddings wait longer.

Upstream: `sglang.srt.managers.scheduler.Scheduler.maybe_sleep_on_idle` (0.5.23). With `--sleep-on-idle` it polls the
tokenizer's and the RPC socket for up to 1 s, but neither the socket on which embeddings arrive, nor does it know of
requests whose embeddings travel by other means (`mm_receiver.waiting_list`, which `is_fully_idle` leaves out).
Without the flag an idle scheduler spins a core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_epd_srt.upstream import wrap

WAITING_POLL_MS = 1
"""How long to sleep while requests wait for embeddings that no polled socket announces."""


def install() -> None:
    wrap("sglang.srt.managers.scheduler.Scheduler.maybe_sleep_on_idle", "3c39e1fe8220", _sleep)


def _sleep(original: Callable[..., None], scheduler: Any) -> None:
    sleeper, receiver = scheduler.idle_sleeper, scheduler.mm_receiver
    if sleeper is None or receiver is None:
        original(scheduler)
        return
    socket = receiver.scheduler_recv_socket
    if socket is not None and socket not in sleeper.poller:
        import zmq

        sleeper.poller.register(socket, zmq.POLLIN)
    if receiver.waiting_list:
        # An abort, a time-out and a completion noticed by a helper thread all need the loop to come round.
        sleeper.poller.poll(WAITING_POLL_MS)
        return
    original(scheduler)
