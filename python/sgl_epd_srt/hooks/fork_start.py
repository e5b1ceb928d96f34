"""Start the scheduler and the detokenizer by fork, so that SGLang is imported once per worker, not three times.

Upstream: `sglang.srt.entrypoints.engine._set_envs_and_config` (0.5.23), which sets the start method to `spawn`.
A forked child cannot use CUDA once its parent has initialised it, and merely asking for a device's capability
initialises it. So on a GPU the children are spawned as upstream does.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

from sgl_epd_srt.upstream import wrap

logger = logging.getLogger(__name__)


def install() -> None:
    wrap("sglang.srt.entrypoints.engine._set_envs_and_config", "b3ddd8a51c62", _then_fork)


def _then_fork(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    import torch

    original(*args, **kwargs)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if torch.cuda.is_initialized() or others:
        # A lock that another thread holds at the fork stays locked in the child for ever.
        logger.warning("starting sub-processes by spawn: CUDA initialised or other threads running (%s)", others)
        return
    multiprocessing.set_start_method("fork", force=True)
