"""Finds the references in a request as SGLang's tokenizer manager holds it.

Errors are `ValueError`s, because that is what SGLang's doors answer with 400.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sgl_epd.errors import BadRequestError
from sgl_epd.protocol.items import Modality
from sgl_epd.protocol.reference import Reference, from_url, is_reference

_PART = "_local_part_"
"""What follows it is cut off where upstream looks up to which request a frame belongs (`extract_original_req_id`)."""


def references_of(request: Any) -> list[Reference]:
    """The references of a `GenerateReqInput`, in the order of its images; none if it holds images or no media.

    Raises `ValueError` for a malformed reference and for references among other media.
    """
    urls = [url for url in map(_url, _flat(request.image_data)) if url is not None and is_reference(url)]
    if not urls:
        return []
    if len(urls) != len(_flat(request.image_data)) or _flat(request.video_data) or _flat(request.audio_data):
        raise ValueError("a request holds either references or media, not both")
    if getattr(request, "mm_hashes", None):
        # They would replace the identity from which the ids have been laid out.
        raise ValueError("mm_hashes do not go with references, which carry their own keys")
    try:
        found = [from_url(url) for url in urls]
    except BadRequestError as error:
        raise ValueError(error.message) from error
    for ref in found:
        if ref.modality is not Modality.IMAGE or len(ref.grid) != 3:
            raise ValueError(f"item {ref.item_id!r}: only images with a grid of (t, h, w) can be referred to")
        if _PART in ref.item_id:
            raise ValueError(f"item {ref.item_id!r}: {_PART!r} cannot be part of an item's id")
    return found


def check_encoders(refs: Sequence[Reference], known: Collection[str]) -> None:
    """Raises `ValueError` unless each reference names one of our own encoders: prefill connects to no other address."""
    trusted = {url.rstrip("/") for url in known}
    for ref in refs:
        if ref.encoder not in trusted:
            raise ValueError(f"item {ref.item_id!r}: {ref.encoder} is no encoder of this worker")


def _flat(data: Any) -> list[Any]:
    """Upstream allows one item, a list, and a list of lists (one a prompt)."""
    if data is None:
        return []
    if not isinstance(data, list):
        return [data]
    return [leaf for entry in data for leaf in _flat(entry)]


def _url(image: Any) -> str | None:
    """The URL of an `ImageData`, or of a bare string as `/generate` takes it."""
    found = image if isinstance(image, str) else getattr(image, "url", None)
    return found if isinstance(found, str) else None
