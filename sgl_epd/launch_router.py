"""`python -m sgl_epd.launch_router`: the router alone. Needs neither torch nor sglang."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from sgl_epd.config import parse
from sgl_epd.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    from sgl_epd_router.app import serve
    from sgl_epd_router.args import RouterConfig

    try:
        config = parse(
            RouterConfig,
            sys.argv[1:] if argv is None else argv,
            prog="python -m sgl_epd.launch_router",
            description="Route OpenAI-API requests to encode, prefill and decode workers.",
        )
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(config))
    else:
        uvloop.run(serve(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
