"""Train with Stable-Baselines3 and evaluate; prints one JSON object.

    PYTHON -m benchmarks.peers.stable_baselines3_returns --algo sac --settings JSON \
        --total-env-steps 60000 --seed 1

PYTHON is an interpreter with `stable-baselines3` and the environments. Nothing of Redline is
imported. The settings are those of `benchmarks/returns.py`, which compares.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from benchmarks.peers.stable_baselines3_models import ALGORITHMS, make_model


class Curve(BaseCallback):
    """(env_steps, return) of every finished episode, of the environment's own rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.points.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def evaluate(model: Any, env_name: str, episodes: int, seed: int) -> list[float]:
    """Returns of the greedy policy: true rewards, and the statistics of training, frozen."""
    env: VecEnv = DummyVecEnv([lambda: Monitor(gymnasium.make(env_name))])
    env.seed(100_000 + seed)
    trained = model.get_vec_normalize_env()
    if trained is not None:
        env = VecNormalize(env, training=False, norm_reward=False)
        env.obs_rms = trained.obs_rms
    returns, _ = evaluate_policy(
        model, env, n_eval_episodes=episodes, deterministic=True, return_episode_rewards=True
    )
    return returns  # pyright: ignore[reportReturnType]


def main() -> None:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=ALGORITHMS, required=True)
    parser.add_argument("--settings", required=True, help="JSON object")
    parser.add_argument("--total-env-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    total, settings = arguments.total_env_steps, json.loads(arguments.settings)
    model = make_model(
        arguments.algo,
        settings,
        total_env_steps=total,
        seed=arguments.seed,
        device=arguments.device,
    )
    curve = Curve()
    begin = time.monotonic()
    model.learn(total, callback=curve)
    wall_time_s = time.monotonic() - begin
    returns = evaluate(model, settings["env"], arguments.episodes, arguments.seed)
    result = {
        "seed": arguments.seed,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "env_steps": model.num_timesteps,
        "wall_time_s": wall_time_s,
        "curve": curve.points,
        "version": stable_baselines3.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
