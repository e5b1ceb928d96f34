"""On a CPU, prefill must not hand pinned host indices to the Mooncake sender.

Upstream: `sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.supports_host_tensor_indices` (0.5.23). When it is
true, `prefill.py:_send_kv_chunk` allocates pinned memory and a CUDA event, and the scheduler of a machine without a
GPU dies. When it is false, the same function takes its older path over `kv_to_page_indices`.
"""

from __future__ import annotations

from sgl_epd.errors import EngineMismatchError


def install() -> None:
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    if not hasattr(MooncakeKVSender, "supports_host_tensor_indices"):
        raise EngineMismatchError("MooncakeKVSender.supports_host_tensor_indices is gone; cpu_kv_sender needs it")
    MooncakeKVSender.supports_host_tensor_indices = False
