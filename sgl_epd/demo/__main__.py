"""Door: `python -m sgl_epd.demo`, what `make demo` runs.

Starts real SGLang encode, prefill and decode workers and the router on free ports, asks them questions about pictures,
prints the answers and where the time of one request went, and ends everything.

Exit codes: 0 when every answer came back and was right, 1 when not or when the host did not start, 2 for wrong flags,
130 after Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sgl_epd.config import option, parse
from sgl_epd.demo import model_path
from sgl_epd.demo.show import Asker, show
from sgl_epd.errors import ConfigError
from sgl_epd.host import devices
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.layout import Layout, make_layout
from sgl_epd.host.run import run_host
from sgl_epd.worker.machine import free_port, has_gpu, is_free

EXIT_WRONG = 1
EXIT_USAGE = 2
_PORT = 30000
_WORKER_PORTS = 100
# The model is tiny; without these the first of several workers on a GPU would take most of its memory.
_SMALL = ("--max-total-tokens", "16384", "--mem-fraction-static", "0.2")


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    encode: int = option(1, "number of encode workers", metavar="N")
    prefill: int = option(1, "number of prefill workers", metavar="N")
    decode: int = option(1, "number of decode workers", metavar="N")
    port: int = option(_PORT, "port of the router; the next free one if it is taken")
    model_path: str = option(str(model_path()), "folder of the demo model", metavar="FOLDER")
    log_dir: str = option("logs/demo", "folder for logs and pictures", metavar="FOLDER")
    stay: bool = option(False, "keep serving after the questions, until Ctrl-C")

    def __post_init__(self) -> None:
        if not (Path(self.model_path) / "config.json").exists():
            raise ConfigError(f"there is no model in {self.model_path}; make it with: python -m sgl_epd.demo.train")

    def serve_config(self, on_gpu: bool) -> ServeConfig:
        port = free_port(self.port)
        small = _SMALL if on_gpu else ()
        return ServeConfig(
            model_path=self.model_path,
            encode=self.encode,
            prefill=self.prefill,
            decode=self.decode,
            port=port,
            worker_port_base=port + _WORKER_PORTS,
            prefill_args=small,
            decode_args=small,
            log_dir=self.log_dir,
        )


def main(argv: Sequence[str] | None = None) -> int:
    try:
        arguments = sys.argv[1:] if argv is None else argv
        demo = parse(DemoConfig, arguments, prog="python -m sgl_epd.demo", description=__doc__ or "")
        config = demo.serve_config(has_gpu())
        layout = make_layout(config, is_free, devices.visible_gpus(os.environ))
        print(f"SGL-EPD: {demo.encode} encode, {demo.prefill} prefill and {demo.decode} decode workers ", end="")
        print(f"on {'the GPU' if has_gpu() else 'the CPU'}, one router", flush=True)
        return run_host(config, layout, job=lambda: _show(demo, layout))
    except ConfigError as error:
        print(f"demo: {error}", file=sys.stderr)
        return EXIT_USAGE


async def _show(demo: DemoConfig, layout: Layout) -> int | None:
    asker = Asker(layout.router.url, demo.model_path)
    try:
        right = await show(asker, [(spec.role, spec.url) for spec in layout.workers], Path(demo.log_dir), _say)
    finally:
        await asker.close()
    if right and demo.stay:
        _say(f"\nstill serving at {layout.router.url}/v1 until Ctrl-C")
        return None
    return 0 if right else EXIT_WRONG


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
