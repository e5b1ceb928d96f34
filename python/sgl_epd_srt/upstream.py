"""Patching SGLang, with proof that what is patched is what the patch was written for.

SGLang's own `HookRegistry` logs a failed patch and goes on, which would leave a worker half-changed. Ours ends the
process instead: `EngineMismatchError` becomes `SystemExit` in `plugin.load`, which `load_plugins` does not swallow.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from sgl_epd.errors import EngineMismatchError

SGLANG_VERSION = "0.5.23"


def check_version() -> None:
    """Raises `EngineMismatchError` unless the pinned SGLang is installed."""
    found = importlib.metadata.version("sglang")
    if found != SGLANG_VERSION:
        raise EngineMismatchError(
            f"sgl-epd's hooks were written for sglang=={SGLANG_VERSION}, but {found} is installed; "
            f"install the pinned one: pip install sglang=={SGLANG_VERSION}"
        )


def fingerprint(symbol: Any) -> str:
    """First 12 hex digits of the SHA-256 of a symbol's source text."""
    return hashlib.sha256(inspect.getsource(symbol).encode()).hexdigest()[:12]


def expect(path: str, digest: str) -> Any:
    """The symbol at dotted `path`, whose source must have fingerprint `digest`.

    Raises `EngineMismatchError` if it is missing or differs.
    """
    try:
        symbol = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise EngineMismatchError(f"SGLang has no {path}, which a hook of sgl-epd needs: {error}") from error
    found = fingerprint(symbol)
    if found != digest:
        raise EngineMismatchError(
            f"SGLang's {path} is not the one a hook of sgl-epd was written for (fingerprint {found}, expected {digest})"
        )
    return symbol


def wrap(path: str, digest: str, wrapper: Callable[..., Any]) -> None:
    """Replace the function at `path` by `wrapper(original, *args, **kwargs)`, also where it was imported by name.

    Calling it twice for one path is a no-op, because a forked process inherits the patch and loads the plugin again.
    """
    owner_path, name = path.rsplit(".", 1)
    owner = pkgutil.resolve_name(owner_path)
    if hasattr(getattr(owner, name, None), "__sgl_epd_original__"):
        return
    original = expect(path, digest)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    patched.__sgl_epd_original__ = original  # type: ignore[attr-defined]
    setattr(owner, name, patched)
    # Modules imported later bind the patched function; those imported before hold a reference of their own.
    for module in [m for n, m in sys.modules.items() if n.startswith("sglang.")]:
        if vars(module).get(name) is original:
            setattr(module, name, patched)
