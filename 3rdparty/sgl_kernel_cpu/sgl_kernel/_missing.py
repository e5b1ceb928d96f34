"""Names that SGLang 0.5.23 looks up on its CPU paths and that this stand-in does not implement.

They exist, since SGLang reads them while it imports its models and kernels; calling one says what is missing.
Left out on purpose are names by whose absence SGLang decides for its own torch code: names that it probes with
`hasattr` or imports inside `try` (`PROBED` in the tests). A raising function there would break what works.
"""

from __future__ import annotations

from typing import NoReturn

# `from sgl_kernel import ...`
PACKAGE_NAMES = (
    "build_tree_kernel_efficient_cpu",
    "gelu_and_mul",
    "infllmv2_attn_stage1",
    "max_pooling_1d_varlen",
    "merge_state_v2",
    "silu_and_mul",
    "verify_tree_greedy_cpu",
)

# `from sgl_kernel.mamba import ...`, `from sgl_kernel.speculative import ...`
MAMBA_NAMES = ("causal_conv1d_fn_cpu", "causal_conv1d_update_cpu", "chunk_gated_delta_rule_cpu")
SPECULATIVE_NAMES = ("reconstruct_indices_from_tree_mask",)

# `torch.ops.sgl_kernel....`
TORCH_OPS = (
    "bmm_cpu",
    "fused_dual_residual_rmsnorm_cpu",
    "fused_experts_cpu",
    "fused_gdn_gating_cpu",
    "fused_input_proj_cpu",
    "fused_linear_sigmoid_mul",
    "fused_moe_router_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qk_rmsnorm_apply_from_stats_cpu",
    "fused_qk_rmsnorm_cpu",
    "fused_qk_rmsnorm_sumsq_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_qkvzba_split_reshape_cat_cpu",
    "fused_rmsnorm_gated_cpu",
    "fused_scale_shift_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
    "gelu_and_mul_cpu",
    "int4_scaled_mm_cpu",
    "int8_scaled_mm_with_quant",
    "l2norm_cpu",
    "qkv_proj_with_rope_fused_weight",
    "rmsnorm_cpu",
    "shared_expert_cpu",
    "shm_allgather",
    "shm_allreduce",
    "topk_sigmoid_cpu",
)


def not_implemented(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"sgl_kernel: {name} is not implemented. This is SGL-EPD's CPU stand-in (distribution sgl-epd-kernel-cpu), "
        "which holds only what SGLang needs to serve without AVX-512, AMX or a GPU. Models or options that need this "
        "operation need the real kernels: sglang-kernel on GPUs, sgl-kernel-cpu on CPUs with AMX."
    )


class MissingOp:
    """Stands where an operation would; raises NotImplementedError when called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    @property
    def default(self) -> MissingOp:
        """Torch operations are also called through their overload, `op.default(...)`."""
        return self

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise not_implemented(self.__name__)

    def __repr__(self) -> str:
        return f"<missing sgl_kernel operation {self.__name__}>"


def missing(names: tuple[str, ...]) -> dict[str, MissingOp]:
    return {name: MissingOp(name) for name in names}
