"""How a network of one's own is found by a name; `redline.registry` says more.

Redline has no networks by name: its own are settings, such as `encoder` and `hidden_sizes`. A
network of one's own is given as a function or class, or as module:Name, or an installed package
offers it in the group `redline.networks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.errors import ConfigError
from redline.registry import PYTHON_ONLY, Registry

NetworkFactory: TypeAlias = Callable[[gymnasium.Space[Any]], torch.nn.Module]
"""Observation space -> module from observations to features; see `policies.make_policy`."""


def _checked(found: Any, given: str) -> Any:
    if isinstance(found, torch.nn.Module) or not callable(found):
        raise ConfigError(
            f"network={given} is of type {type(found).__name__}. Give a function that takes an "
            f"observation space and returns a torch.nn.Module."
        )
    try:
        inspect.signature(found).bind(None)
    except ValueError:
        pass  # written in C: nobody knows its arguments
    except TypeError as error:
        raise ConfigError(
            f"network={given} cannot be called with an observation space alone ({error}). Give a "
            f"function that takes one and returns a torch.nn.Module."
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

    A method of an object stands nowhere, and neither does an object that can be called: only the
    program that made them can give them again.
    """
    found: Any = choice
    of_object = inspect.ismethod(found) and not inspect.isclass(found.__self__)
    if isinstance(found, str) or (hasattr(found, "__qualname__") and not of_object):
        return _REGISTRY.label(found)
    kind = type(found.__self__ if of_object else _checked(found, repr(found)))
    return f"{PYTHON_ONLY}{kind.__module__}.{kind.__qualname__}"
