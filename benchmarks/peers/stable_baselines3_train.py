"""Train with Stable-Baselines3 and time the steady part; prints one JSON object.

    PYTHON -m benchmarks.peers.stable_baselines3_train --algo sac --settings JSON \
        --warmup 500 --measured 600 --threads 1

PYTHON is an interpreter with `stable-baselines3` and the environments. Nothing of Redline is
imported. The settings are those of `benchmarks/workloads.py`.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from benchmarks.peers.stopwatch import Stopwatch


class Clock(BaseCallback):
    """Stops the training when the stopwatch has run."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__()
        self._stopwatch = stopwatch

    def _on_step(self) -> bool:
        return not self._stopwatch.reached(self.num_timesteps)


class EnvPoolVecEnv(VecEnv):
    """EnvPool behind the interface of Stable-Baselines3, as the authors of EnvPool do it."""

    def __init__(self, name: str, num_envs: int, seed: int) -> None:
        import envpool

        self._pool = envpool.make_gymnasium(
            name, num_envs=num_envs, seed=seed, episodic_life=True, reward_clip=True
        )
        super().__init__(num_envs, self._pool.observation_space, self._pool.action_space)

    def reset(self) -> Any:
        """Start anew."""
        return self._pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        """Keep the actions."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step."""
        obs, reward, terminated, truncated, _ = self._pool.step(self._actions)
        done = terminated | truncated
        infos = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            infos[i]["terminal_observation"] = obs[i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i])
        return obs, reward, done, infos

    def close(self) -> None:
        """Nothing to free."""

    def get_attr(self, attr_name: str, indices: Any = None) -> Any:
        """Only what is asked for here: no rendering."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not served."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Not served."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """By nothing."""
        return [False] * self.num_envs


def make_off_policy(algo: str, settings: dict[str, Any], seed: int) -> Any:
    """SAC, TD3 or DQN."""
    env = gymnasium.make(settings["env"])
    shared = {
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["replay_size"],
        "learning_starts": settings["learning_starts"],
        "batch_size": settings["batch_size"],
        "gamma": 0.99,
        "train_freq": settings.get("train_interval", 1),
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": list(settings["hidden_sizes"])},
        "seed": seed,
        "device": "cpu",
    }
    if algo == "dqn":
        return DQN(
            "MlpPolicy",
            env,
            target_update_interval=settings["target_update_interval"],
            exploration_fraction=settings["epsilon_fraction"],
            exploration_final_eps=0.05,
            **shared,
        )
    if algo == "sac":
        return SAC("MlpPolicy", env, tau=settings["tau"], **shared)
    size = env.action_space.shape[0]  # pyright: ignore[reportOptionalSubscript]
    noise = NormalActionNoise(np.zeros(size), settings["exploration_noise"] * np.ones(size))
    return TD3("MlpPolicy", env, tau=settings["tau"], action_noise=noise, **shared)


def make_ppo(settings: dict[str, Any], seed: int) -> Any:
    """PPO, on MuJoCo or on EnvPool's Atari."""
    if "num_envs" in settings:
        policy, env = "CnnPolicy", EnvPoolVecEnv(settings["env"], settings["num_envs"], seed)
        env = VecMonitor(env)
    else:
        policy, env = "MlpPolicy", DummyVecEnv([lambda: gymnasium.make(settings["env"])])
        if settings["normalize"]:
            env = VecNormalize(env)
    return PPO(
        policy,
        env,
        n_steps=settings["rollout_length"],
        batch_size=settings["batch_size"],
        n_epochs=settings["num_epochs"],
        learning_rate=settings["learning_rate"],
        clip_range=settings["clip_range"],
        clip_range_vf=settings["clip_range_value"],
        ent_coef=settings["entropy_coef"],
        seed=seed,
        device="cpu",
    )


def main() -> None:
    """Train until the clock has run, then print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=("sac", "td3", "dqn", "ppo"), required=True)
    parser.add_argument("--settings", required=True, help="JSON object")
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--measured", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = json.loads(arguments.settings)
    if arguments.algo == "ppo":
        model = make_ppo(settings, arguments.seed)
    else:
        model = make_off_policy(arguments.algo, settings, arguments.seed)
    stopwatch = Stopwatch(arguments.warmup, arguments.measured)
    model.learn(10 * (arguments.warmup + arguments.measured), callback=Clock(stopwatch))
    stopwatch.print_result(version=stable_baselines3.__version__)


if __name__ == "__main__":
    main()
