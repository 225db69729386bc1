"""Values of settings: from plain data to the types of their fields, and no others."""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from redline.errors import ConfigError
from redline.plain_text import shortened, shown
from redline.train.setting_names import did_you_mean

__all__ = ["as_json", "coerced", "from_plain", "kinds_in", "require_64_bits", "types_of", "words"]


@functools.cache
def types_of(cls: type) -> Mapping[str, Any]:
    """Of the fields; found once, for annotations are text that has to be compiled."""
    return types.MappingProxyType(typing.get_type_hints(cls))


def from_plain(cls: Any, data: Any) -> Any:
    """An instance of a class of settings, from plain data.

    Raises:
        ConfigError: if a name is unknown or a value has the wrong type.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{cls.__name__} must be a JSON object, got {type(data).__name__}.")
    hints = types_of(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in hints:
            meant = did_you_mean(str(name), hints)  # YAML has names that are no words
            raise ConfigError(
                f"{cls.__name__} has no setting {shown(name)}{meant}. Remove "
                "it, or use the version of Redline that wrote it."
            )
        values[name] = coerced(name, value, hints[name])
    return cls(**values)


def as_json(name: str, value: Any) -> str:
    """A setting as text.

    Raises:
        ConfigError: if JSON has no word for it.
    """
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be written as JSON ({error}), so the run could not be resumed. Give "
            f"numbers, strings, lists and dicts, or give env as a callable that makes one."
        ) from error


def coerced(name: str, value: Any, kind: Any) -> Any:
    """`value` as the type `kind`, if that loses nothing.

    Raises:
        ConfigError: if it would lose something.
    """
    options = typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)
    for option in options:
        matched, result = _match(value, option)
        if matched:
            return result
    expected = " or ".join(_type_name(option) for option in options)
    raise ConfigError(
        f"{shortened(name)}={shown(value, 200)} has the wrong type or value: expected {expected}."
    )


def kinds_in(kind: Any) -> tuple[Any, ...]:
    """The types of which a value may be, or its items."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return (kind,)
    return tuple(each for option in typing.get_args(kind) for each in kinds_in(option))


def require_64_bits(name: str, value: Any) -> None:
    """Refuse a whole number that no tensor, file or loop of a run could hold."""
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, int) and each.bit_length() > 63:
            raise ConfigError(
                f"{name} is a whole number of {each.bit_length():,} bits, and 63 are the most. "
                f"Give a smaller one."
            )


def words(text: str) -> tuple[str, ...]:
    """The words of a list that is separated by commas."""
    return tuple(word for each in text.split(",") if (word := each.strip()))


_UNIONS = (typing.Union, types.UnionType)


def _match(value: Any, kind: Any) -> tuple[bool, Any]:
    if typing.get_origin(kind) is Literal:
        if value is False and "off" in typing.get_args(kind):
            value = "off"  # what YAML makes of the word
        return value in typing.get_args(kind), value
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        if element is str and isinstance(value, str):
            return True, words(value)
        if not isinstance(value, (list, tuple)):
            return False, value
        pairs = [_match(item, element) for item in value]
        return all(ok for ok, _ in pairs), tuple(item for _, item in pairs)
    if kind is type(None):
        return value is None, value
    if kind is float:
        return _number(value)
    if kind is int:
        if isinstance(value, float) and value.is_integer():
            return True, int(value)  # 1e5 is a float in Python, YAML and TOML
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole, value
    return isinstance(value, kind), value


def _number(value: Any) -> tuple[bool, Any]:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False, value
    try:
        return True, float(value)
    except OverflowError:  # a whole number beyond 1.8e308
        return False, value


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(option) for option in typing.get_args(kind))
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))
