"""The ids of the native games, and the originals that they follow. Imports no torch."""

from __future__ import annotations

from typing import Any

PREFIX = "redline/"

GAMES: dict[str, tuple[str, str]] = {
    "redline/CartPole-v1": ("cart_pole", "CartPole"),
    "redline/Acrobot-v1": ("acrobot", "Acrobot"),
    "redline/MountainCar-v0": ("mountain_car", "MountainCar"),
    "redline/MountainCarContinuous-v0": ("mountain_car", "MountainCarContinuous"),
    "redline/Pendulum-v1": ("pendulum", "Pendulum"),
    "redline/Asterix-v1": ("asterix", "Asterix"),
    "redline/Breakout-v1": ("breakout", "Breakout"),
    "redline/Freeway-v1": ("freeway", "Freeway"),
    "redline/Seaquest-v1": ("seaquest", "Seaquest"),
    "redline/SpaceInvaders-v1": ("space_invaders", "SpaceInvaders"),
}
"""Id -> module beside this one, class."""

_MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")

ORIGINALS: dict[str, str] = {
    name: f"{'MinAtar/' if cls in _MINATAR else ''}{name.removeprefix(PREFIX)}"
    for name, (_, cls) in GAMES.items()
}
"""Id -> the environment that it follows step by step, for pictures and for comparison."""


def is_native(env: Any) -> bool:
    """Whether `env` is an id of a game that the device back end steps."""
    return isinstance(env, str) and env in GAMES
