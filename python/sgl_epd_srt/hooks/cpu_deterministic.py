"""Let `--enable-deterministic-inference` (and with it the per-request `seed`) work on a CPU.

Upstream: `sglang.srt.arg_groups.choices` and
`sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode` (0.5.23). SGLang honours a
request's seed only in this mode, refuses the mode for the only attention backend that a CPU without AMX has, and would
put Triton kernels in place of torch's matrix products. Here seeds work and attention is computed request by request,
but torch's CPU matrix products stay as they are: results may differ in the last bits between batch sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sgl_epd_srt.upstream import wrap

logger = logging.getLogger(__name__)
BACKEND = "torch_native"


def install() -> None:
    from sglang.srt.arg_groups import choices

    if BACKEND not in choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        choices.add_deterministic_attention_backend_choices([BACKEND])
        # Its prefix-cached extend is the same computation as a whole prefill, so the radix cache may stay on.
        choices.add_radix_supported_deterministic_attention_backend_choices([BACKEND])
    wrap(
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
        "50c417a13a23",
        _keep_torch_ops,
    )


def _keep_torch_ops(original: Callable[..., None], runner: Any) -> None:
    if runner.server_args.enable_deterministic_inference:
        logger.warning("deterministic inference on a CPU: seeds are honoured, matrix products are not batch-invariant")
