"""Settings from a TOML file: every key checked against the fields of the command it configures."""

from __future__ import annotations

import tomllib
import types
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from smoothcert.errors import ConfigError
from smoothcert.files import read_at_most

_MOST_BYTES = 2**20
NOT_IN_FILES = ("config",)  # a file cannot name another file


def load_config(cls: type[Any], path: Path) -> dict[str, Any]:
    """The values that the TOML file at `path` gives to fields of the dataclass `cls`, converted to their types.

    Keys are field names, with hyphens or underscores. ConfigError for a file that cannot be read, a key that is not a
    field (naming the nearest one), or a value of the wrong type. Ranges are checked by whoever uses the values.
    """
    hints = get_type_hints(cls)
    known = [field.name for field in fields(cls) if field.name not in NOT_IN_FILES]
    values: dict[str, Any] = {}
    for key, value in _read(path).items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{path}: unknown key {key!r}.{_suggestion(name, known)}")
        if name in values:
            raise ConfigError(f"{path}: {key!r} is given twice, with a hyphen and with an underscore.")
        try:
            values[name] = convert(value, hints[name])
        except TypeError:
            raise ConfigError(
                f"{path}: expected `{key}` to be {_describe(hints[name])}, got {_shown(value)}."
            ) from None
    return values


def _read(path: Path) -> dict[str, Any]:
    content = read_at_most(path, _MOST_BYTES, ConfigError, f"the config file {path}")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"Cannot read the config file {path}: it is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is not a config file: its values are nested too deeply.") from error
    except ValueError as error:  # numbers of more digits than Python converts
        raise ConfigError(f"{path} is not a config file: {error}.") from error


def _shown(value: Any) -> str:
    """A value for a message; Python prints neither numbers of thousands of digits nor lists nested as deeply."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"one that is too large to print ({type(value).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _suggestion(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Expected one of {', '.join(known)}."


def convert(value: Any, hint: Any) -> Any:
    """`value` as TOML gave it, turned into what `hint` asks for; TypeError if that would change its meaning."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _first_conversion(value, args)
    if origin is Literal and value in args:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(convert(item, args[0]) for item in value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is int and value.bit_length() >= 64:  # no setting takes such a number, and some cannot be printed
        raise TypeError
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:  # True is no int here
        return value
    raise TypeError


def _first_conversion(value: Any, hints: Iterable[Any]) -> Any:
    for hint in hints:
        try:
            return convert(value, hint)
        except TypeError:
            continue
    raise TypeError


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path in quotes"}
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is tuple:
        return f"a list, each item {_describe(args[0])}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(arg) for arg in args if arg is not types.NoneType)
    return words.get(hint, str(hint))
