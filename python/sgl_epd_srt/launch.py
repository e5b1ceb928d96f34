"""Starts SGLang in this process from a `WorkerPlan`.

Mirrors what `python -m sglang.launch_server` (0.5.23) does: load plugins, parse, run, end all children. The
environment is set before SGLang is imported, because many of its modules read it at import time.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from typing import NoReturn

from sgl_epd.errors import WorkerError
from sgl_epd.worker.plan import WorkerPlan


def start(plan: WorkerPlan) -> int:
    """Serve until the worker ends. Raises `WorkerError` if SGLang is not installed."""
    os.environ.update(plan.env)
    _share_metrics()
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
    _exit_now()


def _share_metrics() -> None:
    """Name the folder of the metrics before `prometheus_client` is imported.

    That library decides at import whether values are shared between processes. Upstream names the folder later, which
    is early enough for children that import everything anew, but not for forked ones.
    """
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="metrics-")
        atexit.register(folder.cleanup)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder.name


def _exit_now() -> NoReturn:
    """End without tearing down the interpreter, which costs 4 s of CPU with all of SGLang's modules in it."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
