"""`sgl_kernel.speculative`: names only. SGLang's speculative workers import them on every CPU."""

from ._missing import SPECULATIVE_NAMES, missing

globals().update(missing(SPECULATIVE_NAMES))
