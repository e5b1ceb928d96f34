"""Command line, YAML and environment, all generated from frozen dataclasses.

A config class is a frozen dataclass whose fields carry `option(...)` metadata. `parse(cls, argv)` reads, in rising
order of precedence: the field's default, a YAML file (`--config FILE`), the environment (`SGL_EPD_<FIELD>`), and the
command line. A wrong value raises `ConfigError` with the name of the place it came from.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union

import yaml

from sgl_epd.errors import ConfigError

T = TypeVar("T")
ENV_PREFIX = "SGL_EPD_"
_KEY = "sgl_epd.option"


@dataclasses.dataclass(frozen=True)
class Option:
    """How one dataclass field appears on the command line, in YAML and in the environment.

    `parse` turns one string (or, with `nargs`, one list of strings) into the value of one occurrence; `repeat` collects
    the occurrences into a tuple.
    """

    help: str
    group: str = "general"
    choices: tuple[str, ...] | None = None
    metavar: str | tuple[str, ...] | None = None
    parse: Callable[[Any], Any] | None = None
    nargs: str | None = None
    repeat: bool = False
    aliases: tuple[str, ...] = ()
    secret: bool = False


def option(default: Any, help: str, **kwargs: Any) -> Any:
    """A dataclass field with its command-line description. A secret one is left out of the config's `repr`."""
    spec = Option(help=help, **kwargs)
    return dataclasses.field(default=default, repr=not spec.secret, metadata={_KEY: spec})


def options_of(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Option, Any]]:
    """Field name -> (field, option, resolved type) for every field made with `option`."""
    hints = typing.get_type_hints(cls)
    return {f.name: (f, f.metadata[_KEY], hints[f.name]) for f in dataclasses.fields(cls) if _KEY in f.metadata}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are `ConfigError`s, so that doors decide how to end."""

    def error(self, message: str) -> typing.NoReturn:
        raise ConfigError(message)


def build_parser(cls: type, prog: str, description: str) -> argparse.ArgumentParser:
    """The `--help` of a door: one argument group for each `Option.group`, in order of first appearance."""
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [options]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same names as the flags")
    groups: dict[str, Any] = {}
    for name, (field, opt, hint) in options_of(cls).items():
        group = groups.setdefault(opt.group, None) or parser.add_argument_group(opt.group)
        groups[opt.group] = group
        _add_argument(group, name, field, opt, hint)
    return parser


def _add_argument(group: Any, name: str, field: dataclasses.Field[Any], opt: Option, hint: Any) -> None:
    names = [flag(name), *opt.aliases]
    kwargs: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    text = (opt.help + _shown_default(field.default, opt)).replace("%", "%%")
    if hint is bool:
        _add_switch(group, names, field.default, text, kwargs)
        return
    kwargs["metavar"] = opt.metavar or _metavar(name, opt, hint)
    if opt.nargs:
        kwargs["nargs"] = opt.nargs
    if opt.repeat:
        kwargs["action"] = "append"
    group.add_argument(*names, help=text, **kwargs)


def _add_switch(group: Any, names: list[str], default: Any, text: str, kwargs: dict[str, Any]) -> None:
    """Both `--x` and `--no-x` work; `--help` shows the one that changes something."""
    negative = ["--no-" + name.removeprefix("--") for name in names]
    hidden = argparse.SUPPRESS
    group.add_argument(*names, action="store_const", const=True, help=hidden if default else text, **kwargs)
    group.add_argument(*negative, action="store_const", const=False, help=text if default else hidden, **kwargs)


def _metavar(name: str, opt: Option, hint: Any) -> str:
    if opt.choices:
        return "{" + ",".join(opt.choices) + "}"
    plain = _strip_optional(_element(hint) if opt.repeat or opt.nargs else hint)
    if plain in (int, float):
        return {"secs": "SECS", "ms": "MS"}.get(name.rpartition("_")[2], "N")
    return name.rpartition("_")[2].upper()


def _shown_default(default: Any, opt: Option) -> str:
    if opt.secret or default in (None, (), "") or isinstance(default, bool):
        return ""
    shown = (
        " ".join(map(str, default))
        if isinstance(default, tuple)
        else f"{default:g}"
        if isinstance(default, float)
        else default
    )
    return f" (default: {shown})"


def parse(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    environ: Mapping[str, str] | None = None,
) -> T:
    """Build `cls` from `argv`, `--config FILE` and the environment. Raises `ConfigError`; `--help` exits 0."""
    parser = build_parser(cls, prog, description)
    given = vars(parser.parse_args(list(argv)))
    return merge(cls, given, os.environ if environ is None else environ)


def merge(cls: type[T], given: dict[str, Any], environ: Mapping[str, str]) -> T:
    """Merge parsed flags over environment over YAML over defaults, then convert and check each value."""
    options = options_of(cls)
    values: dict[str, Any] = {}
    path = given.pop("config", None) or environ.get(ENV_PREFIX + "CONFIG")
    if path:
        for name, value in _read_yaml(Path(path), options).items():
            values[name] = _convert(name, value, options[name], f"{path}: {name}")
    for name, entry in options.items():
        env_name = ENV_PREFIX + name.upper()
        if env_name in environ:
            values[name] = _convert(name, _split_env(environ[env_name], entry), entry, env_name)
    for name, value in given.items():
        values[name] = _convert(name, value, options[name], flag(name))
    return cls(**values)


def _read_yaml(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold a mapping of option names to values")
    result = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name not in options:
            raise ConfigError(f"{path}: unknown option {key!r}{_hint(name, options)}")
        result[name] = value
    return result


def _hint(name: str, options: Mapping[str, Any]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(options), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _split_env(text: str, entry: tuple[Any, Option, Any]) -> Any:
    _, opt, _ = entry
    if opt.repeat and opt.nargs:
        return [part.split() for part in text.split(",") if part.strip()]
    if opt.repeat or opt.nargs:
        return text.replace(",", " ").split()
    return text


def _convert(name: str, value: Any, entry: tuple[Any, Option, Any], where: str) -> Any:
    _, opt, hint = entry
    try:
        if opt.repeat:
            items = value if isinstance(value, list | tuple) else [value]
            return tuple(_convert_one(_listed(item, opt), opt, _element(hint)) for item in items)
        if opt.nargs:
            items = value if isinstance(value, list | tuple) else str(value).split()
            return tuple(_convert_one(item, opt, _element(hint)) for item in items)
        return _convert_one(value, opt, hint)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _listed(item: Any, opt: Option) -> Any:
    """With `nargs`, one occurrence is a list of strings, also when YAML wrote it as a string or a list."""
    if not opt.nargs:
        return item
    parts = item if isinstance(item, list | tuple) else str(item).split()
    return [str(part) for part in parts]


def _element(hint: Any) -> Any:
    args = [a for a in typing.get_args(hint) if a is not Ellipsis]
    return args[0] if args else str


def _convert_one(value: Any, opt: Option, hint: Any) -> Any:
    if opt.parse is not None:
        return opt.parse(value)
    plain = _strip_optional(hint)
    if value is None:
        return None
    if opt.choices and str(value) not in opt.choices:
        raise ValueError(f"{value!r} is not one of {', '.join(opt.choices)}")
    if plain is bool:
        return _to_bool(value)
    if plain is int:
        return _to_int(value)
    if plain is float:
        return float(value)
    if plain is str:
        return str(value)
    return value


def _strip_optional(hint: Any) -> Any:
    if typing.get_origin(hint) in (Union, types.UnionType):
        args = [a for a in typing.get_args(hint) if a is not type(None)]
        return args[0] if len(args) == 1 else hint
    return hint


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{value!r} is not a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a whole number") from None
