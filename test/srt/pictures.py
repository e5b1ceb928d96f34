"""Pictures and chat bodies for the tests with the real engine; all deterministic."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 112, height: int = 112) -> Image.Image:
    """Coloured blocks that differ for every seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


def data_uri(image: Image.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


def image_part(uri: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri}}


def chat(text: str, images: Sequence[Image.Image] = (), **fields: Any) -> dict[str, Any]:
    """A greedy chat body: the images in order, then the text."""
    parts = [*(image_part(data_uri(image)) for image in images), {"type": "text", "text": text}]
    body = {"model": "default", "temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": parts}]}
    return {**body, **fields}
