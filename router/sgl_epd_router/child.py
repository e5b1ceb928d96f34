"""One of several router processes behind one port.

Started by `multiproc` as `python -m sgl_epd_router.child CONTROL_FD BOARD_FD LISTEN_FD...`; everything else comes over
the control socket.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import sys
from collections.abc import Sequence

import uvloop

from sgl_epd.errors import EpdError
from sgl_epd_router.app import RouterApp, settle_memory
from sgl_epd_router.context import RouterContext
from sgl_epd_router.counters import CounterBoard
from sgl_epd_router.logs import setup_logging
from sgl_epd_router.remote import RemoteAttachment
from sgl_epd_router.wire import Link, PoolState, Ready, Welcome


async def run_child(link: Link, board_file: int, sockets: Sequence[socket.socket]) -> None:
    """Serve until told to stop, or until the control process is gone; then drain."""
    welcome, state = await link.receive(), await link.receive()
    if not isinstance(welcome, Welcome) or not isinstance(state, PoolState):
        raise EpdError("the control process did not say what to serve")
    config = welcome.config
    setup_logging(config.log_level, config.log_format, config.log_dir)
    memory = mmap.mmap(board_file, CounterBoard.size(config.workers))
    board = CounterBoard(memory, processes=config.workers, mine=welcome.process)
    remotes: list[RemoteAttachment] = []

    def attach(context: RouterContext) -> RemoteAttachment:
        remotes.append(RemoteAttachment(context, link))
        return remotes[0]

    app = RouterApp(config, attach, board)
    remote = remotes[0]
    remote.take(state)
    await app.start(sockets)
    settle_memory()
    reading = asyncio.create_task(remote.read())
    link.send(Ready(os.getpid()))
    grace_s = await remote.stopping
    await app.stop(grace_s)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await link.close()


async def _main(control: int, board: int, listening: list[int]) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=control))
    await run_child(Link(reader, writer), board, [socket.socket(fileno=number) for number in listening])


def main() -> None:
    control, board, *listening = map(int, sys.argv[1:])
    # A service manager may signal all processes of the router at once; the control process says when to stop.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    uvloop.run(_main(control, board, listening))


if __name__ == "__main__":
    main()
