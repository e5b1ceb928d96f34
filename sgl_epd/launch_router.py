"""`python -m sgl_epd.launch_router`: the router alone. Needs neither torch nor sglang."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence

from sgl_epd.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status: 2 for a wrong flag, with a sentence on stderr."""
    from sgl_epd_router.app import serve
    from sgl_epd_router.args import parse_args
    from sgl_epd_router.logs import setup_logging

    try:
        config = parse_args(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    setup_logging(config.log_level, config.log_format, config.log_dir)
    _run(serve(config))
    return 0


def _run(main: Coroutine[None, None, None]) -> None:
    """On uvloop, which halves the cost of a request; where there is none (Windows), on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    sys.exit(main())
