"""Attributes that a run sets, in the middle of an episode, restored with it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from redline.envs import make_vec
from redline.errors import ConfigError


class Gains(gymnasium.Env[Any, Any]):
    """Its only number grows by `gain` in each step; what cannot be saved is in `odd`."""

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.gain, self.odd, self.total = 1.0, object(), 0.0

    @property
    def fixed(self) -> int:
        return 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.total = 0.0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.total += self.gain
        return np.array([self.total], np.float32), self.total, False, False, {}


class WithProtocol(Gains):
    """Saves its number only."""

    def get_state(self) -> Any:
        return self.total

    def set_state(self, state: Any) -> None:
        self.total = state


ACTION = np.zeros(2, np.int64)


@pytest.mark.parametrize("kind", [Gains, WithProtocol])
@pytest.mark.parametrize("backend", ["gymnasium", "processes"])
def test_what_was_set_is_restored(kind: Any, backend: str) -> None:
    """Gain 1, then 10 after two steps, then 100 after three: 1, 2, 12, 112; saved at 12.

    A journal has to set the attribute when it was set, or the replay gives another number.
    """
    options: dict[str, Any] = {"backend": backend}
    if backend == "processes":
        options["num_workers"] = 1
    with make_vec(kind, 2, **options) as env:
        env.reset(1)
        for _ in range(2):
            env.step(ACTION)
        env.set_attr("gain", 10.0)
        env.step(ACTION)
        state = env.state_dict()
        env.set_attr("gain", 100.0)
        assert env.step(ACTION).reward.tolist() == [112.0, 112.0]
    with make_vec(kind, 2, **options) as env:
        assert np.asarray(env.load_state_dict(state)).ravel().tolist() == [12.0, 12.0]
        assert env.step(ACTION).reward.tolist() == [22.0, 22.0]
        again = env.state_dict()
    with make_vec(kind, 2) as env:
        again["backend"] = "gymnasium"
        env.load_state_dict(again)
        assert env.step(ACTION).reward.tolist() == [32.0, 32.0]


def test_wrappers_have_attributes_too() -> None:
    with make_vec(lambda: TimeLimit(Gains(), 9), 1) as env:
        env.reset(1)
        env.set_attr("_max_episode_steps", 1)
        assert env.step(ACTION[:1]).truncated.tolist() == [True]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gian", 1, "has no attribute 'gian'"),
        ("gain", object(), "a checkpoint cannot hold"),
        ("fixed", 2, "cannot be set"),
    ],
)
def test_what_cannot_be_set_is_refused(name: str, value: Any, message: str) -> None:
    with make_vec(Gains, 1) as env, pytest.raises(ConfigError, match=message):
        env.set_attr(name, value)


def test_native_games_have_none() -> None:
    with make_vec("redline/CartPole-v1", 1) as env, pytest.raises(ConfigError, match="cannot set"):
        env.set_attr("gravity", 1.0)
