"""The original MinAtar games, fed with the random numbers that ours are fed with."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from minatar import Environment

ORIGINAL_NAMES = {
    "redline/Asterix-v1": "asterix",
    "redline/Breakout-v1": "breakout",
    "redline/Freeway-v1": "freeway",
    "redline/Seaquest-v1": "seaquest",
    "redline/SpaceInvaders-v1": "space_invaders",
}
# Where the draws of a spawn begin: in Seaquest a diver may come without an enemy.
CURSORS = {"_spawn_enemy": 1, "_spawn_diver": 4}


class GivenDraws:
    """Stands in for numpy's RandomState and hands out a row of given numbers in [0, 1)."""

    def __init__(self) -> None:
        self.row, self.cursor = np.zeros(0, np.float32), 0

    def feed(self, row: Any) -> None:
        self.row, self.cursor = np.asarray(row, np.float32), 0

    def _take(self, count: int) -> np.ndarray:
        taken = self.row[self.cursor : self.cursor + count]
        assert len(taken) == count, "the original draws more than ours"
        self.cursor += count
        return taken

    def rand(self, *shape: int) -> Any:
        if not shape:
            return float(self._take(1)[0])
        return self._take(shape[0]).astype(np.float64)

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        if high is None:
            low, high = 0, low
        numbers = low + (self._take(size or 1) * np.float32(high - low)).astype(int)
        return numbers if size else int(numbers[0])


class Twin:
    """One original game."""

    def __init__(self, env_id: str, sticky: float, ramping: bool) -> None:
        self.outer = Environment(ORIGINAL_NAMES[env_id], sticky, ramping)
        self.draws = GivenDraws()
        self.outer.random = self.outer.env.random = self.draws
        for name, cursor in CURSORS.items():
            if hasattr(self.outer.env, name):
                self._place(name, cursor)

    def _place(self, name: str, cursor: int) -> None:
        method = getattr(type(self.outer.env), name)

        def spawn(env: Any) -> Any:
            env.random.cursor = cursor
            return method(env)

        # On the class of this one object, so that a copy of the game takes it along.
        cls = type(self.outer.env)
        self.outer.env.__class__ = type(cls.__name__, (cls,), {name: spawn})

    def reset(self, row: Any) -> None:
        self.draws.feed(row)
        self.outer.last_action = 0
        self.outer.reset()

    def act(self, action: int, row: Any) -> tuple[float, bool]:
        self.draws.feed(row)
        reward, terminal = self.outer.act(action)
        return float(reward), bool(terminal)

    def survives(self, action: int, row: Any) -> bool:
        """Whether the action is not the last one of the game; the game itself stays."""
        other = copy.copy(self)
        other.outer = copy.deepcopy(self.outer)
        other.draws = other.outer.env.random
        other.outer.random = other.draws
        return not other.act(action, row)[1]

    def observe(self) -> np.ndarray:
        return np.moveaxis(self.outer.state(), 2, 0).astype(np.uint8)
