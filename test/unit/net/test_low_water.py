"""The low-water mark never asks for more than what is to come, and is back at one byte when a body is complete."""

from __future__ import annotations

import asyncio
import socket

from hypothesis import given
from hypothesis import strategies as st
from sockets import connected, served

from sgl_epd.net.low_water import LowWater


class FakeSocket:
    """Remembers the mark that was set."""

    level = 1
    calls = 0

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.level = value
        self.calls += 1


@given(st.integers(1, 20_000_000), st.lists(st.integers(1, 1_000_000), max_size=60))
def test_the_rest_of_a_body_is_always_reported(length: int, pieces: list[int]) -> None:
    sock, left = FakeSocket(), length
    mark = LowWater(sock)
    mark.expect(left)
    for piece in [*pieces, length]:
        left -= min(left, piece)
        mark.expect(left)
        assert 1 <= sock.level <= max(left, 1)
    assert sock.level == 1


def test_small_bodies_cost_no_call() -> None:
    sock = FakeSocket()
    mark = LowWater(sock)
    for left in (100_000, 50_000, 0):
        mark.expect(left)
    assert sock.calls == 0


async def test_a_body_in_small_pieces_arrives_on_a_kept_connection() -> None:
    body = bytes(i * 31 % 253 for i in range(1_000_000))
    head = b"POST /p HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with served() as port, connected(port) as c:
        for _ in range(2):
            c.send(head)
            for at in range(0, len(body), 70_000):
                c.send(body[at : at + 70_000])
                await asyncio.sleep(0.002)
            assert (await c.reply())[2] == b"POST /p " + body
        c.send(b"GET /x HTTP/1.1\r\nHost: t\r\n\r\n")
        assert (await c.reply())[2] == b"GET /x "
