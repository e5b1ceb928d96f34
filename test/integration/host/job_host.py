"""A host with a job, as the demo has one. `JOB` says what the job does."""

from __future__ import annotations

import asyncio
import os
import sys

from sgl_epd.host.layout import make_layout
from sgl_epd.host.run import run_host
from sgl_epd.serve import read_config
from sgl_epd.worker.machine import is_free


async def job() -> int | None:
    print("job begins", flush=True)
    what = os.environ["JOB"]
    if what == "fails":
        raise RuntimeError("the job is broken")
    if what == "hangs":
        await asyncio.sleep(600)
    return None if what == "stays" else int(what)


config = read_config(sys.argv[1:])
sys.exit(run_host(config, make_layout(config, is_free, ()), job=job))
