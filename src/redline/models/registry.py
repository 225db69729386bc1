"""How a network of one's own is found by a name; `redline.registry` says more.

Redline has no networks by name: its own are settings, such as `encoder` and `hidden_sizes`. A
network of one's own is given as a function or class, or as module:Name, or an installed package
offers it in the group `redline.networks`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.errors import ConfigError
from redline.plain_text import shortened
from redline.registry import PYTHON_ONLY, Registry

NetworkFactory: TypeAlias = Callable[[gymnasium.Space[Any]], torch.nn.Module]
"""Observation space -> module from observations to features; see `policies.make_policy`."""


def _checked(found: Any, given: str) -> Any:
    if isinstance(found, torch.nn.Module) or not callable(found):
        raise ConfigError(
            f"network={shortened(given, 100)} is of type {type(found).__name__}. Give a function "
            f"that takes an observation space and returns a torch.nn.Module."
        )
    try:
        inspect.signature(found).bind(None)
    except ValueError:
        pass  # written in C: nobody knows its arguments
    except TypeError as error:
        raise ConfigError(
            f"network={shortened(given, 100)} cannot be called with an observation space alone "
            f"({error}). Give a function that takes one and returns a torch.nn.Module."
        ) from error
    return found


_REGISTRY: Registry[Any] = Registry("network", {}, "redline.networks", _checked)


def find_network(choice: str | NetworkFactory) -> NetworkFactory:
    """The factory that was given, or that has this name.

    Args:
        choice: a function or class; module:Name of one; or the name that an installed package
            offers it by.

    Raises:
        UnknownNameError: if there is none of that name.
        ConfigError: if what was found makes no network.
    """
    found: Any = choice
    return _REGISTRY.find(found)


def network_label(choice: str | NetworkFactory) -> str:
    """What `config.json` calls it: its name, else where it stands.

    A place is one only if an import gives this very object back. What a method of an object, a
    lambda or a decorator's result is, only the program that made it can say.
    """
    if isinstance(choice, str):
        return _REGISTRY.label(choice)
    found: Any = _checked(choice, repr(choice))
    owner = found.__self__ if inspect.ismethod(found) else None
    if inspect.isclass(owner):
        module, name = owner.__module__, f"{owner.__qualname__}.{found.__name__}"
    else:
        kind = type(found if owner is None else owner)
        named: Any = found if owner is None and hasattr(found, "__qualname__") else kind
        module, name = getattr(named, "__module__", None) or kind.__module__, named.__qualname__
    if _stands_at(module, name, found):
        return _REGISTRY.label(f"{module}:{name}")
    return f"{PYTHON_ONLY}{module}.{name}"


def _stands_at(module: str, name: str, found: Any) -> bool:
    """Whether an import of this place gives the object itself; nothing is imported to see it."""
    if module == "__main__" or module not in sys.modules:
        return False
    there: Any = sys.modules[module]
    for part in name.split("."):
        there = getattr(there, part, None)
    return there is found or (inspect.ismethod(found) and there == found)
