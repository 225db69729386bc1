"""Evaluation: seeds of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

import redline


class SeedWitness(gymnasium.Env[Any, Any]):
    """Remembers, over all instances, with what those that are stepped were seeded."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    seeds: ClassVar[list[int]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.seed = 3, seed
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.left == 3 and self.seed is not None:
            self.seeds.append(self.seed)
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_no_environment_of_an_evaluation_is_seeded_like_one_that_trains(tmp_path: Path) -> None:
    """Elsewhere agents were evaluated on the episodes that they had been trained on."""
    SeedWitness.seeds.clear()
    run = redline.train(
        "ppo", env=SeedWitness, out=tmp_path / "run", seed=4, num_envs=4, rollout_length=8,
        total_env_steps=64, hidden_sizes=(4,), quiet=True, tensorboard=False, eval_interval=32,
        eval_episodes=3,
    )  # fmt: skip
    during = list(SeedWitness.seeds)
    SeedWitness.seeds.clear()
    run.evaluate(5)
    after = list(SeedWitness.seeds)
    training, evaluations = set(during[:4]), [during[4:7], during[7:], after]
    assert len(training) == 4
    assert [len(seeds) for seeds in evaluations] == [3, 3, 5]
    seen = set(training)
    for seeds in evaluations:
        assert len(set(seeds)) == len(seeds)
        assert not seen & set(seeds)
        seen |= set(seeds)
