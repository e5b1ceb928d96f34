"""Stand-in for `sgl_kernel` on CPUs, in pure torch: what SGLang 0.5.23 needs of it to serve without AMX or a GPU.

Operations on our paths are implemented; the rest of what SGLang reads at import time exists and raises when called.
"""

from __future__ import annotations

import sys

from . import _real

_found = _real.find_real()
if _found is not None:
    raise ImportError(_real.refusal(_found, sys.prefix))

from . import _register  # noqa: E402 - nothing may be registered beside the real kernels
from ._missing import PACKAGE_NAMES, missing  # noqa: E402
from .cache_locs import (  # noqa: E402
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .kv_cache import copy_all_layer_kv_cache_cpu  # noqa: E402

__version__ = "0.5.23"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
]

_register.register()
globals().update(missing(PACKAGE_NAMES))
