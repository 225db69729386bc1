"""Attributes of environments that a run sets, such as the level of a curriculum."""

from __future__ import annotations

from typing import Any

import gymnasium

from redline.envs.plain_data import NotPlainError, encode
from redline.errors import ConfigError


def set_attribute(env: gymnasium.Env[Any, Any], name: str, value: Any, label: str) -> None:
    """Set an attribute where it is: on the outermost wrapper that has it, or the environment.

    Args:
        env: with all its wrappers.
        name: of the attribute.
        value: its new value.
        label: what to call the environment in messages.

    Raises:
        ConfigError: if none of them has it, or it cannot be set.
    """
    layer: Any = env
    while not hasattr(layer, name):
        if not isinstance(layer, gymnasium.Wrapper):
            raise ConfigError(
                f"{label} has no attribute {name!r} to set. Give one that the environment or one "
                f"of its wrappers has."
            )
        layer = layer.env
    if callable(getattr(layer, name)):  # the name may come from a stranger's checkpoint
        raise ConfigError(
            f"{label}: {name!r} is a method of {type(layer).__name__}, not an attribute to set. "
            f"Give an attribute that holds data."
        )
    try:
        setattr(layer, name, value)
    except AttributeError as error:
        raise ConfigError(
            f"{label}: the attribute {name!r} of {type(layer).__name__} cannot be set ({error}). "
            f"Give it a setter, or use another one."
        ) from error


def plain_attribute(name: str, value: Any) -> Any:
    """The value of an attribute as plain data, which a checkpoint can hold.

    Raises:
        ConfigError: if it has no such form.
    """
    try:
        return encode(value)
    except NotPlainError as error:
        raise ConfigError(
            f"the attribute {name!r} of environments cannot be {value!r}: a checkpoint cannot hold "
            f"{error}. Give numbers, strings, arrays, or lists and dicts of these."
        ) from error
