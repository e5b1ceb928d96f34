"""Keeps the encoder list of one prefill worker equal to what `encoder_lists.plan` wants.

The list lives in the worker, on its `--encoder-bootstrap-port` (SGLang: `disaggregation/encoder/receiver.py:
EncoderBootstrapServer`). It is read back each time, because the worker restarts, and because its own health check drops
encoders that are merely busy. URLs that this router does not know are left alone: the worker was started with them.
"""

from __future__ import annotations

import logging

import msgspec

from sgl_epd.errors import BadRequestError, TransportError
from sgl_epd.net.client import HttpClient
from sgl_epd_router.worker import Worker, normalize_url

logger = logging.getLogger(__name__)
_TIMEOUT_S = 5.0
_JSON = [(b"content-type", b"application/json")]


def list_url(worker: Worker) -> str | None:
    """Where a worker keeps its encoder list."""
    if worker.spec.encoder_port is None:
        return None
    host = f"[{worker.host}]" if ":" in worker.host else worker.host
    return f"http://{host}:{worker.spec.encoder_port}"


class EncoderSync:
    """The list of one prefill (or aggregated) worker. `known` collects every encoder URL that was ever ours."""

    def __init__(self, worker: Worker, client: HttpClient) -> None:
        self._worker = worker
        self._client = client
        self._reachable = True
        self.known: set[str] = set()

    async def sync(self, wanted: frozenset[str]) -> None:
        """Make our part of the list equal to `wanted` (URLs). An unreachable list is tried again at the next call."""
        base = list_url(self._worker)
        if base is None:
            return
        self.known |= wanted
        try:
            listed = await self._listed(base)
            for url in sorted(wanted - set(listed)):
                await self._send("POST", f"{base}/register_encoder_url", url)
            # Added first, removed last: the list is never empty in between.
            for url, spelled in listed.items():
                if url in self.known and url not in wanted:
                    await self._send("DELETE", f"{base}/unregister_encoder_url", spelled)
        except (TransportError, TimeoutError, ValueError) as error:
            self._report(reachable=False, error=error)
        else:
            self._report(reachable=True)

    async def _listed(self, base: str) -> dict[str, str]:
        """Normalised URL -> as the worker spells it."""
        reply = await self._client.fetch("GET", f"{base}/list_encoder_urls", timeout_s=_TIMEOUT_S)
        if reply.status != 200:
            raise ValueError(f"list_encoder_urls answers {reply.status}")
        try:
            urls = msgspec.json.decode(reply.body, type=dict[str, list[str]])["encoder_urls"]
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError("list_encoder_urls gives no list") from error
        return {_plain(url): url for url in urls}

    async def _send(self, method: str, url: str, encoder: str) -> None:
        body = msgspec.json.encode({"url": encoder})
        reply = await self._client.fetch(method, url, headers=_JSON, body=body, timeout_s=_TIMEOUT_S)
        if reply.status != 200:
            raise ValueError(f"{url} answers {reply.status}")
        logger.info("%s %s: %s", self._worker.id, "uses" if method == "POST" else "no longer uses", encoder)

    def _report(self, reachable: bool, error: Exception | None = None) -> None:
        """Say it once, not every two seconds."""
        if reachable is not self._reachable and not reachable:
            logger.warning(
                "%s keeps no encoder list at %s (%s): was it started with --language-only and this "
                "--encoder-bootstrap-port? Its encoders are not managed here until then",
                self._worker.id,
                list_url(self._worker),
                error,
            )
        self._reachable = reachable


def _plain(url: str) -> str:
    """Spellings of the same URL compare equal; what is no URL stays as it is."""
    try:
        return normalize_url(url)
    except BadRequestError:
        return url
