"""What a model is made of, read from its Hugging Face config: sizes, weights, and how it cuts up images."""

from __future__ import annotations

from sgl_epd.planner.models.registry import load_model, shipped_models
from sgl_epd.planner.models.spec import LanguageSpec, MediaRules, MediaSize, ModelSpec, VisionSpec

__all__ = ["LanguageSpec", "MediaRules", "MediaSize", "ModelSpec", "VisionSpec", "load_model", "shipped_models"]
