"""Reading a config's fields: the first name that is there, of the right type, or a sentence on what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgl_epd.errors import ConfigError

Json = Mapping[str, Any]


def integer(config: Json, *names: str, default: int | None = None) -> int:
    """A whole number above 0 under one of `names`. Raises `ConfigError`."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} in the model's config must be a whole number above 0, not {value!r}")
        return value
    if default is None:
        raise ConfigError(f"the model's config has no {' or '.join(names)}")
    return default


def flag(config: Json, name: str, default: bool) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{name} in the model's config must be true or false, not {value!r}")
    return default if value is None else value


def section(config: Json, *names: str) -> Json:
    """A nested object under one of `names`. Raises `ConfigError`."""
    for name in names:
        value = config.get(name)
        if isinstance(value, Mapping):
            return value
    raise ConfigError(f"the model's config has no {' or '.join(names)}: it has no vision part, or is of another kind")


def dtype_bytes(config: Json, text: Json) -> int:
    """Bytes of a weight: 2 for half precision (also where nothing is said), 4 for single."""
    names = (config.get("torch_dtype"), config.get("dtype"), text.get("torch_dtype"), text.get("dtype"))
    return 4 if next((name for name in names if name), "bfloat16") == "float32" else 2
