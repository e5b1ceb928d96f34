"""The text part of a config, whatever family it stands in."""

from __future__ import annotations

from sgl_epd.planner.models.fields import Json, flag, integer
from sgl_epd.planner.models.spec import LanguageSpec

_QKV_BIAS = frozenset({"qwen2", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text", "minicpmv"})
_QK_NORM = frozenset({"qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text"})


def language_of(text: Json, *, tied: bool, cross_layers: int = 0, extra_embeddings: int = 0) -> LanguageSpec:
    """Raises `ConfigError` for missing or impossible sizes."""
    kind = str(text.get("model_type", "llama"))
    hidden, heads = integer(text, "hidden_size"), integer(text, "num_attention_heads")
    layers = integer(text, "num_hidden_layers")
    experts = integer(text, "num_experts", "num_local_experts") if "moe" in kind else 0
    return LanguageSpec(
        hidden=hidden,
        intermediate=integer(text, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=integer(text, "num_key_value_heads", default=heads),
        head_dim=integer(text, "head_dim", default=hidden // heads),
        vocab=integer(text, "vocab_size"),
        extra_embeddings=extra_embeddings,
        tied=tied,
        qkv_bias=flag(text, "attention_bias", kind in _QKV_BIAS),
        qk_norm=kind in _QK_NORM,
        experts=experts,
        experts_per_token=integer(text, "num_experts_per_tok") if experts else 0,
        expert_intermediate=integer(text, "moe_intermediate_size") if experts else 0,
        dense_layers=_dense_layers(text, layers) if experts else 0,
        cross_layers=cross_layers,
    )


def tied_embeddings(config: Json, text: Json) -> bool:
    """Checkpoints say it inside the text part, at the top, or not at all (then they are apart)."""
    return flag(text, "tie_word_embeddings", False) or flag(config, "tie_word_embeddings", False)


def max_context(text: Json) -> int:
    """Positions, stretched by dynamic or linear RoPE scaling as the engines do it."""
    positions = integer(text, "max_position_embeddings", default=4096)
    scaling = text.get("rope_scaling") or {}
    if scaling.get("type") in ("dynamic", "linear"):
        return int(positions * float(scaling.get("factor", 1.0)))
    return positions


def _dense_layers(text: Json, layers: int) -> int:
    """As in Qwen3-MoE: every `decoder_sparse_step`-th layer is sparse unless it is listed as dense."""
    step, listed = integer(text, "decoder_sparse_step", default=1), set(text.get("mlp_only_layers") or ())
    return sum(layer in listed or (layer + 1) % step != 0 for layer in range(layers))
