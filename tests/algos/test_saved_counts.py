"""Counts in a saved state of each algorithm: they may be a stranger's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from redline.algos.algorithm import Algorithm
from redline.algos.registry import BUILT_IN, find_algorithm
from redline.errors import CorruptCheckpointError

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
COUNTS = ("updates", "optimizer_steps")


def made(name: str) -> Algorithm:
    """With the defaults, for Box actions where it takes them."""
    cls: Any = find_algorithm(name)
    actions = spaces.Discrete(2) if name in ("dqn", "r2d1") else BOX
    network = {"core": "lstm"} if name == "r2d1" else {}
    return cls.make(BOX, actions, cls.Config(), seed=1, **network)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"crossq"}))  # wide: as SAC
def test_a_count_that_is_none_is_refused_and_named(name: str) -> None:
    """A word instead of SAC's count ended in a traceback at the next update."""
    algorithm = made(name)
    saved = algorithm.state_dict()
    (count,) = (each for each in COUNTS if each in saved)
    algorithm.load_state_dict(copy.deepcopy(saved))
    for odd in ("x", -1, 2.5, None, [1], 2**70, True):
        with pytest.raises(CorruptCheckpointError, match=rf"state\.algorithm\.{count} is"):
            algorithm.load_state_dict(copy.deepcopy(saved) | {count: odd})
