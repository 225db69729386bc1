"""DQN learns from every kind of observation that can be flattened."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import redline
from redline.engines.cpu import actor_for
from redline.envs import make_vec
from redline.policies import SquashedGaussianActor
from redline.policies.make import make_actor, make_policy

SPACES = [
    pytest.param(spaces.Box(-1, 1, (4,), np.float32), id="float32"),
    pytest.param(spaces.Box(-1, 1, (4,), np.float64), id="float64"),
    pytest.param(spaces.Box(-1, 1, (4,), np.float16), id="float16"),
    pytest.param(spaces.Box(0, 10, (5,), np.int64), id="integers"),
    pytest.param(spaces.MultiBinary(4), id="bits"),
    pytest.param(spaces.Box(-1, 1, (2, 3), np.float32), id="matrix"),
    pytest.param(spaces.Dict({"x": spaces.Box(-1, 1, (4,), np.float32)}), id="one key"),
    pytest.param(spaces.Discrete(5), id="number"),
]


class Drawing(gymnasium.Env):
    """Observations drawn from a space; episodes of five steps."""

    def __init__(self, space: spaces.Space, actions: spaces.Space) -> None:
        self.observation_space, self.action_space, self.t = space, actions, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, {}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_dqn_trains(space: spaces.Space, num_envs: int, tmp_path: Any) -> None:
    redline.train(
        "dqn",
        env=lambda: Drawing(space, spaces.Discrete(3)),
        num_envs=num_envs,
        rollout_length=4,
        learning_starts=16,
        target_update_interval=4,
        batch_size=8,
        replay_size=64,
        hidden_sizes=(8,),
        activation="relu",
        total_env_steps=64,
        quiet=True,
        tensorboard=False,
        out=tmp_path / "run",
    )


@pytest.mark.parametrize(("dtype", "is_served"), [(np.float32, True), (np.float16, False)])
def test_acting_without_the_tensor_library_is_for_float32(dtype: Any, is_served: bool) -> None:
    space = spaces.Box(-1, 1, (4,), dtype)
    discrete, box = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
    for policy in (
        make_policy(space, discrete, hidden_sizes=(8,)),
        make_actor(SquashedGaussianActor, space, box, hidden_sizes=(8,)),
    ):
        assert (actor_for(policy, 1, 4) is not None) == is_served


def test_a_declared_float64_arrives_as_float32_and_is_served() -> None:
    with make_vec(
        lambda: Drawing(spaces.Box(-1, 1, (4,), np.float64), spaces.Discrete(2)), 1
    ) as env:
        policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(8,))
    assert actor_for(policy, 1, 4) is not None
