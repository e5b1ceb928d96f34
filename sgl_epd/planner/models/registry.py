"""From a name or a folder to a `ModelSpec`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec

from sgl_epd.errors import ConfigError
from sgl_epd.planner import datafile
from sgl_epd.planner.models.fields import Json
from sgl_epd.planner.models.internvl import read_internvl
from sgl_epd.planner.models.llava import read_llava
from sgl_epd.planner.models.minicpm import read_minicpm
from sgl_epd.planner.models.mllama import read_mllama
from sgl_epd.planner.models.qwen import read_qwen
from sgl_epd.planner.models.spec import ModelSpec
from sgl_epd.planner.models.ultravox import read_ultravox

_READERS: dict[str, Callable[[str, Json, Json], ModelSpec]] = {
    "qwen2_vl": read_qwen,
    "qwen2_5_vl": read_qwen,
    "qwen3_vl": read_qwen,
    "qwen3_vl_moe": read_qwen,
    "internvl_chat": read_internvl,
    "internvl": read_internvl,
    "minicpmv": read_minicpm,
    "llava": read_llava,
    "llava_next": read_llava,
    "llava_onevision": read_llava,
    "mllama": read_mllama,
    "ultravox": read_ultravox,
}


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shipped model: the fields of its config.json and preprocessor_config.json that are read here."""

    model_path: str
    """Its name on the Hugging Face hub."""
    source: str
    config: dict[str, Any]
    preprocessor: dict[str, Any] = {}


def shipped_models() -> list[str]:
    """Names that `load_model` knows without a folder."""
    return datafile.shipped_names("models")


def load_model(name: str) -> ModelSpec:
    """A folder with a config.json, a shipped name, or the hub name of a shipped model.

    Raises `ConfigError` for an unknown name, an unknown kind of model, one without a vision part, or a broken config.
    """
    folder = Path(name)
    if folder.is_dir():
        config = datafile.read(folder / "config.json", dict[str, Any])
        file = folder / "preprocessor_config.json"
        return read_model(name, config, datafile.read(file, dict[str, Any]) if file.is_file() else {})
    summary = _summary(name)
    return read_model(summary.model_path, summary.config, summary.preprocessor)


def read_model(name: str, config: Json, processor: Json) -> ModelSpec:
    """Raises `ConfigError`."""
    kind = str(config.get("model_type"))
    reader = _READERS.get(kind)
    if reader is None:
        raise ConfigError(
            f"{name} is a {kind!r} model, which is text only or of a family that the planner does not know; "
            f"it knows {', '.join(_READERS)}"
        )
    try:
        return reader(name, config, processor)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{name}: its config is not one of a {kind} model ({type(error).__name__}: {error})"
        ) from error


def _summary(name: str) -> Summary:
    wanted = name.lower().rstrip("/")
    for shipped in shipped_models():
        file: Traversable = datafile.shipped("models", f"{shipped}.json")
        if wanted == shipped:
            return datafile.read(file, Summary)
        if "/" in wanted:
            summary = datafile.read(file, Summary)
            if summary.model_path.lower() == wanted:
                return summary
    raise ConfigError(
        f"{name!r} is neither a folder with a config.json nor a shipped model; "
        f"shipped are {', '.join(shipped_models())}"
    )
