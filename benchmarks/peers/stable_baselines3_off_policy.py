"""Train SAC or TD3 of Stable-Baselines3 and evaluate it; prints one JSON object.

    PYTHON benchmarks/peers/stable_baselines3_off_policy.py --algo sac --env HalfCheetah-v5 \
        --total-env-steps 60000 --seed 1

PYTHON is an interpreter with `stable-baselines3` and `gymnasium[mujoco]`. Nothing of Redline
is imported. Hyperparameters are those of `benchmarks/off_policy.py`, which compares.
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
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise


class Curve(BaseCallback):
    """(env_steps, return) of every finished episode."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.points.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def make_model(algo: str, env: gymnasium.Env[Any, Any], seed: int, settings: dict[str, Any]) -> Any:
    """The model with exactly these hyperparameters."""
    shared = {
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["replay_size"],
        "learning_starts": settings["learning_starts"],
        "batch_size": settings["batch_size"],
        "tau": settings["tau"],
        "gamma": settings["gamma"],
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": list(settings["hidden_sizes"])},
        "seed": seed,
        "device": "cpu",
    }
    if algo == "sac":
        return SAC("MlpPolicy", env, **shared)
    size = env.action_space.shape[0]
    noise = NormalActionNoise(np.zeros(size), settings["exploration_noise"] * np.ones(size))
    return TD3("MlpPolicy", env, action_noise=noise, **shared)


def main() -> None:
    """Train, evaluate, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=("sac", "td3"), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--total-env-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--settings", required=True, help="JSON object of hyperparameters")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    env = gymnasium.make(arguments.env)
    settings = json.loads(arguments.settings)
    model = make_model(arguments.algo, env, arguments.seed, settings)
    curve = Curve()
    begin = time.monotonic()
    model.learn(arguments.total_env_steps, callback=curve)
    wall_time_s = time.monotonic() - begin
    test_env = stable_baselines3.common.monitor.Monitor(gymnasium.make(arguments.env))
    test_env.reset(seed=100_000 + arguments.seed)
    returns, _ = evaluate_policy(
        model, test_env, n_eval_episodes=arguments.episodes, return_episode_rewards=True
    )
    result = {
        "seed": arguments.seed,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "env_steps": arguments.total_env_steps,
        "wall_time_s": wall_time_s,
        "curve": curve.points,
        "version": stable_baselines3.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
