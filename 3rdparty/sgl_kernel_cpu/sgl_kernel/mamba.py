"""`sgl_kernel.mamba`: names only. SGLang's linear-attention layers import them on every CPU."""

from ._missing import MAMBA_NAMES, missing

globals().update(missing(MAMBA_NAMES))
