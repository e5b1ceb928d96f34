"""Puts our receiver where SGLang looks its receivers up by the name in `SGLANG_ENCODER_MM_RECEIVER_MODE`.

Upstream: `sglang.srt.disaggregation.encoder.receiver._MM_RECEIVER_BY_MODE` (0.5.23) and the parts of that module that
the receiver builds on.
"""

from __future__ import annotations

from sgl_epd_srt.upstream import expect

MODE = "sgl-epd"
_MODULE = "sglang.srt.disaggregation.encoder.receiver"
_BUILT_ON = {
    "MMReceiverHTTP": "6b26d68cae49",
    "MMReceiverBase._process_waiting_requests": "180dc0ba85f6",
    "MMReceiverBase._drain_scheduler_embeddings": "8deb7ffd9938",
    "WaitingMMRequestBase": "a79dc625f089",
    "WaitingZmqRequest": "d438bc7f2fe6",
}


def install() -> None:
    for name, digest in _BUILT_ON.items():
        expect(f"{_MODULE}.{name}", digest)
    expect(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_epd_disaggregation_encode_request",
        "15b96116754d",
    )
    from sglang.srt.disaggregation.encoder.receiver import _MM_RECEIVER_BY_MODE

    from sgl_epd_srt.native.receiver import NativeReceiver

    _MM_RECEIVER_BY_MODE[MODE] = NativeReceiver
