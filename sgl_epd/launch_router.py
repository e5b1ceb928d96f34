"""`python -m sgl_epd.launch_router`: the router alone. Needs neither torch nor sglang."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import uvloop

from sgl_epd.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGINT or SIGTERM. Wrong flags end it with code 2 and a sentence."""
    from sgl_epd_router.app import serve
    from sgl_epd_router.args import parse_args
    from sgl_epd_router.logs import setup_logging

    try:
        config = parse_args(sys.argv[1:] if argv is None else argv)
        setup_logging(config.log_level, config.log_format, config.log_dir)
        if config.workers > 1:
            from sgl_epd_router.multiproc import serve_with_workers

            code: int = uvloop.run(serve_with_workers(config))
            return code
        uvloop.run(serve(config))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
