"""The wrappers around an environment, one by one, and which of them a user wrote."""

from __future__ import annotations

from typing import Any

import gymnasium

_PACKAGES = ("gymnasium.", "ale_py.", "redline.")


def layers_of(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """The wrappers from the outside in, then the innermost environment."""
    layers: list[Any] = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def own_wrappers(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """The wrappers that are not of Gymnasium, ALE or Redline, from the outside in."""
    wrappers = layers_of(env)[:-1]
    return [layer for layer in wrappers if not type(layer).__module__.startswith(_PACKAGES)]
