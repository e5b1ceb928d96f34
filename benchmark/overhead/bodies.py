"""Request bodies: an OpenAI chat with text and one base64 image, as a vision client sends it.

The text carries the nonce that the load client fills in; the image ends with a mark that the mock worker looks for, so
a body that was cut or rewritten without its end does not count as served.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

NONCE = "nonce:" + "N" * 16
END_MARK = "ENDOFIMG"
SIZES = {"2 KiB": 2 << 10, "100 KiB": 100 << 10, "1 MiB": 1 << 20, "10 MiB": 10 << 20}
_WORDS = (
    "the",
    "photo",
    "shows",
    "a",
    "street",
    "with",
    "two",
    "people",
    "and",
    "an",
    "old",
    "red",
    "door",
    "at",
    "night",
)


def chat_body(size: int, *, stream: bool = False, seed: int = 0) -> bytes:
    """A chat request of exactly `size` bytes."""
    rng = random.Random(seed)
    text = f"{NONCE} Describe this picture. " + " ".join(rng.choices(_WORDS, k=60))
    head, tail = _render(text, "\0", stream).split("\0")
    room = size - len(head) - len(tail) - len(END_MARK)
    if room < 64:
        raise ValueError(f"{size} bytes are too few for a chat request with an image")
    pixels = base64.b64encode(rng.randbytes(room * 3 // 4 + 3))[:room].decode()
    return (head + pixels + END_MARK + tail).encode()


def _render(text: str, image: str, stream: bool) -> str:
    content = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{image}"}},
    ]
    body = {
        "model": "mock",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 64,
        "temperature": 0.0,
        "stream": stream,
    }
    return json.dumps(body, separators=(",", ":")).replace("\\u0000", "\0")


def write_bodies(folder: Path) -> dict[str, Path]:
    """One file for each size, and one streaming request of 2 KiB. Name -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, size in SIZES.items():
        files[name] = folder / f"{size}.json"
        files[name].write_bytes(chat_body(size, seed=size))
    files["stream"] = folder / "stream.json"
    files["stream"].write_bytes(chat_body(SIZES["2 KiB"], stream=True))
    return files
