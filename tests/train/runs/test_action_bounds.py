"""A warning where a Gaussian begins far from the bounds of its actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import redline
from redline.train.runs.building import said_of_bounds


class Summing(gymnasium.Env[Any, Any]):
    """Pays the sum of the action, for ten steps."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(3, np.float32), float(np.sum(action)), self._steps % 10 == 0, False, {}


@pytest.mark.parametrize(
    ("low", "high", "settings", "said"),
    [
        (50.0, 70.0, {}, "clipped to the same bound"),
        (-np.inf, -3.0, {}, "TransformAction"),
        (-100.0, 100.0, {}, "a small part"),
        (50.0, 70.0, {"distribution": "squashed"}, None),
        (50.0, 70.0, {"initial_log_std": 4.0}, None),
        (0.0, 0.4, {}, None),
        (-np.inf, np.inf, {}, None),
    ],
)
def test_actions_that_begin_far_from_their_bounds_are_told(
    low: float, high: float, settings: dict[str, Any], said: str | None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """PPO stayed at -10 for 30,000 env_steps: each action was the lower bound."""

    def env() -> gymnasium.Env[Any, Any]:
        return Summing(spaces.Box(low, high, (2,), np.float32))

    redline.train(
        "ppo", env=env, out=tmp_path / "run", total_env_steps=128, num_envs=4, rollout_length=32,
        quiet=True, tensorboard=False, **settings,
    )  # fmt: skip
    warned = capsys.readouterr().err
    assert (said or "first drawn") in warned if said else "first drawn" not in warned


@pytest.mark.parametrize(
    ("second", "said", "not_said"),
    [
        (spaces.Box(-1, 1, (2,)), "--distribution squashed", "RescaleAction"),
        (spaces.Box(-np.inf, np.inf, (2,)), "TransformAction", "squashed"),
        (spaces.Discrete(3), "--distribution squashed", "RescaleAction"),
    ],
)
def test_a_part_of_an_action_that_begins_far_from_its_bounds_is_told(
    second: Any, said: str, not_said: str
) -> None:
    space = spaces.Dict({"a": spaces.Box(50, 70, (30,)), "b": second})
    policy = redline.policies.make_policy(spaces.Box(-1, 1, (2,)), space)
    (sentence,) = said_of_bounds(policy, fresh=True)
    assert said in sentence
    assert not_said not in sentence
    assert "\n" not in sentence
    assert said_of_bounds(policy, fresh=False) == []
