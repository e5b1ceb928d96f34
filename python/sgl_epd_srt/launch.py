"""Starts SGLang in this process from a `WorkerPlan`.

Mirrors what `python -m sglang.launch_server` (0.5.23) does: load plugins, parse, run, end all children. The
environment is set before SGLang is imported, because many of its modules read it at import time.
"""

from __future__ import annotations

import os

from sgl_epd.errors import WorkerError
from sgl_epd.worker.plan import WorkerPlan


def start(plan: WorkerPlan) -> int:
    """Serve until the worker ends. Raises `WorkerError` if SGLang is not installed."""
    os.environ.update(plan.env)
    try:
        from sglang.launch_server import run_server
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import prepare_server_args
        from sglang.srt.utils import kill_process_tree
    except ModuleNotFoundError as error:
        raise WorkerError(
            f"cannot import SGLang ({error}); on a GPU machine: pip install 'sgl-epd[cuda]', on a CPU: make env"
        ) from error
    load_plugins()
    try:
        run_server(prepare_server_args(list(plan.argv)))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0
