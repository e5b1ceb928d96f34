"""Reading and writing the planner's JSON files, strictly: an unknown or wrong field is an error that names the file."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sgl_epd.errors import ConfigError

T = TypeVar("T")


def shipped(*parts: str) -> Traversable:
    """A file or folder of the package's own data."""
    return files("sgl_epd.planner").joinpath("data", *parts)


def shipped_names(folder: str) -> list[str]:
    """Names (without `.json`) of what is shipped in a data folder, sorted."""
    return sorted(
        entry.name.removesuffix(".json") for entry in shipped(folder).iterdir() if entry.name.endswith(".json")
    )


def read(file: Path | Traversable, kind: type[T]) -> T:
    """Raises `ConfigError` if the file is missing, no JSON, or not a `kind`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} is not what it should be: {error}") from error


def write(file: Path, value: Any) -> None:
    """Readable JSON, one field a line. Raises `ConfigError` if it cannot be written."""
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
