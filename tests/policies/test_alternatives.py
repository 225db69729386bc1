"""What a refused algorithm advises must itself accept the space."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from redline.algos.registry import BUILT_IN, find_algorithm
from redline.errors import RedlineError, SpaceError

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "box-float64": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "box-unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "box-integers": spaces.Box(0, 5, (2,), np.int64),
    "discrete": spaces.Discrete(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "dict-of-boxes": spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "dict-with-text": spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3)),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    "text": spaces.Text(3),
}


def refusal(algorithm: str, space: spaces.Space[Any]) -> str | None:
    """What the algorithm says of the action space; None if it takes it."""
    kind: Any = find_algorithm(algorithm)
    settings = {"core": "lstm"} if algorithm == "r2d1" else {}
    try:
        kind.make(OBS, space, kind.Config(), seed=0, hidden_sizes=(4,), **settings)
    except SpaceError as error:
        return str(error)
    return None


def named_in(message: str) -> list[str]:
    """The algorithms that a message sends the user to."""
    advice = " ".join(re.findall(r"\b[Uu]se [^.]*\.", message))
    return [name for name in BUILT_IN if re.search(rf"\b{name}\b", advice)]


@pytest.mark.parametrize("name", ACTIONS)
def test_what_a_refusal_names_accepts_the_space(name: str) -> None:
    """And where any algorithm does, at least one is named: TD3 said dqn or sac, who both refuse."""
    space = ACTIONS[name]
    refusals = {algorithm: refusal(algorithm, space) for algorithm in BUILT_IN}
    accepting = {algorithm for algorithm, message in refusals.items() if message is None}
    for algorithm, message in refusals.items():
        if message is None:
            continue
        named = named_in(message)
        assert set(named) <= accepting, (algorithm, message)
        assert bool(named) == bool(accepting), (algorithm, message)


def test_a_way_to_recurrence_is_open_to_box_actions() -> None:
    """SAC and TD3 named r2d1 beside ppo, which has Discrete actions only."""
    for algorithm in ("sac", "td3", "ddpg"):
        kind = find_algorithm(algorithm)
        with pytest.raises(RedlineError, match="core='lstm'") as caught:
            kind.make_policy(OBS, ACTIONS["box"], kind.Config(), core="lstm")
        assert named_in(str(caught.value)) == ["ppo"]
