"""Environments for workers that act on the stand-in: what imports this has the device."""

from __future__ import annotations

from typing import Any

import gymnasium

from redline.devices import add_kind
from tests.accelerator import emulated_graph, stand_in

stand_in.install()
add_kind(stand_in.NAME, emulated_graph.EmulatedKind())


def cartpole() -> gymnasium.Env[Any, Any]:
    """A worker imports this module before it makes any."""
    return gymnasium.make("CartPole-v1")
