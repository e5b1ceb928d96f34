"""The entry point that SGLang calls in each of its processes (group `sglang.srt.plugins`).

Outside of a worker that `sgl_epd.launch_server` started it does nothing: an environment that has sgl-epd installed
runs stock SGLang unchanged.
"""

from __future__ import annotations

import os
import sys

from sgl_epd.errors import EngineMismatchError

ROLE_ENV = "SGL_EPD_ROLE"
NATIVE_REFS_ENV = "SGL_EPD_NATIVE_REFS"


def load() -> None:
    """Install the hooks that this process's role and device need; ends the process if SGLang is not the pinned one."""
    role = os.environ.get(ROLE_ENV)
    if not role:
        return
    try:
        install(role, on_cpu=os.environ.get("SGLANG_USE_CPU_ENGINE") == "1")
        if os.environ.get(NATIVE_REFS_ENV) == "1":
            install_native_refs(role)
    except EngineMismatchError as error:
        # SystemExit, since SGLang's loader swallows every Exception of a plugin and would serve without the hooks.
        sys.exit(f"sgl-epd: {error}")


def install(role: str, *, on_cpu: bool) -> None:
    from sgl_epd_srt.hooks import (
        cpu_deterministic,
        cpu_kv_sender,
        failed_embedding,
        fork_start,
        idle_sleep,
        mm_processors,
        prefill_restart,
    )
    from sgl_epd_srt.upstream import check_version

    check_version()
    mm_processors.install()
    idle_sleep.install()
    if role == "prefill":
        failed_embedding.install()
    if role == "decode":
        prefill_restart.install()
    if on_cpu:
        fork_start.install()
        cpu_deterministic.install()
    if on_cpu and role in ("prefill", "decode"):
        cpu_kv_sender.install()


def install_native_refs(role: str) -> None:
    from sgl_epd_srt.hooks import native_inputs, native_receiver

    native_inputs.install(waits=role == "prefill")
    if role == "prefill":
        native_receiver.install()
