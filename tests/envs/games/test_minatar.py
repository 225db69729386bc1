"""MinAtar's games as Gymnasium environments."""

from __future__ import annotations

import numpy as np
import pytest

from redline.envs import EnvSettings, make_vec
from redline.envs.games.minatar import IDS


@pytest.mark.parametrize("env_id", IDS)
def test_minatar_games_keep_to_their_spaces(env_id: str) -> None:
    env = make_vec(env_id, 2)
    assert env.reset(0).dtype == np.uint8
    assert env.observation_space.shape[1:] == (10, 10)
    rng = np.random.default_rng(0)
    for _ in range(30):
        step = env.step(rng.integers(0, env.action_space.n, 2))
        assert set(np.unique(step.obs)) <= {0, 1}


def test_minatar_games_are_reproducible_past_the_first_game() -> None:
    def play() -> list:
        env = make_vec("MinAtar/Breakout-v1", 2)
        env.reset(4)
        rng = np.random.default_rng(0)
        return [env.step(rng.integers(0, 3, 2)).obs.tobytes() for _ in range(80)]

    assert play() == play()


def test_minatar_renders() -> None:
    single = EnvSettings(
        env="MinAtar/Breakout-v1", env_kwargs={"render_mode": "rgb_array"}
    ).single()
    game = single.make()
    game.reset(seed=0)
    image = game.render()
    assert image.shape == (160, 160, 3)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 2
