"""The prefill server's side of encoding: which encoders it knows, and how it asks them.

Source: `sglang/srt/disaggregation/encoder/receiver.py`: `EncoderBootstrapServer` (register, unregister, list on a port
of its own) and `MMReceiverHTTP.encode` (all parts are waited for, the first error ends the request, no second try).
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from .wire import Connection, Request, Server

CHANGES = (("POST", "/register_encoder_url"), ("DELETE", "/unregister_encoder_url"))


class EncodeError(Exception):
    """An encoder refused or was lost; `status` is what the prefill server answers with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def media_items(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(modality, url) of each image, video and audio of a chat, in order."""
    found = []
    for message in body.get("messages") or []:
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            kind = str(part.get("type", ""))
            if kind in ("image_url", "video_url", "audio_url"):
                found.append((kind.split("_")[0].upper(), part[kind]["url"]))
    return found


class EncoderList:
    """Encoders known to one prefill server."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.port = 0
        self.calls: list[tuple[str, str]] = []
        self.changed = asyncio.Condition()
        self._server = Server(self._serve)
        self._random = random.Random(0)

    async def start(self) -> None:
        if not self._server.listening:
            self.port = await self._server.start(self.port)

    async def stop(self) -> None:
        await self._server.stop()

    async def becomes(self, urls: set[str]) -> None:
        """Wait until exactly these encoders are registered."""
        async with self.changed:
            await self.changed.wait_for(lambda: set(self.urls) == urls)

    async def _serve(self, connection: Connection, request: Request) -> None:
        if request.path == "/list_encoder_urls":
            await connection.reply_json({"encoder_urls": list(self.urls)})
        elif request.path == "/health":
            await connection.reply(200, b"OK", "text/plain")
        elif (request.method, request.path) in CHANGES:
            await self._change(connection, request)
        else:
            await connection.reply_json({"detail": "Not Found"}, 404)

    async def _change(self, connection: Connection, request: Request) -> None:
        url = request.json().get("url")
        if not url:
            await connection.reply_json({"error": "Missing or empty 'url' field"}, 400)
            return
        async with self.changed:
            self.calls.append((request.path, url))
            if request.method == "DELETE" and url in self.urls:
                self.urls.remove(url)
            if request.method == "POST" and url not in self.urls:
                self.urls.append(url)
            self.changed.notify_all()
        await connection.reply(200, b"OK", "text/plain")

    async def encode(self, body: dict[str, Any], rid: str) -> None:
        """Send each item to an encoder, spread as SGLang does: evenly over a shuffled list, blind to load."""
        items, urls = media_items(body), list(self.urls)
        self._random.shuffle(urls)
        shares = [(url, items[place :: len(urls)]) for place, url in enumerate(urls) if items[place :: len(urls)]]
        parts = [self._post(url, rid, i, len(shares), share) for i, (url, share) in enumerate(shares)]
        for outcome in await asyncio.gather(*parts, return_exceptions=True):
            if isinstance(outcome, EncodeError):
                raise outcome
            if isinstance(outcome, BaseException):
                raise EncodeError(502, f"encoder unreachable: {outcome}")

    async def _post(self, url: str, rid: str, part: int, parts: int, items: list[tuple[str, str]]) -> None:
        body = {
            "req_id": f"{rid}_local_part_{part}",
            "modality": items[0][0],
            "mm_items": [url for _, url in items],
            "num_parts": parts,
            "part_idx": part,
            "prefill_host": "127.0.0.1",
            "embedding_port": None,
        }
        status, reply = await post_json(url, "/encode", body)
        if status != 200:
            message = reply.get("message", "encode failed") if isinstance(reply, dict) else "encode failed"
            raise EncodeError(status, message)


async def post_json(url: str, path: str, body: Any) -> tuple[int, Any]:
    """POST on a connection of its own; (status, JSON or None)."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        data = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        )
        writer.write(data)
        head, _, payload = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    try:
        return int(head.split(b" ", 2)[1]), json.loads(payload or b"null")
    except ValueError:
        return int(head.split(b" ", 2)[1]), None
