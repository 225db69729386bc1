"""Models of Stable-Baselines3 by the settings of `benchmarks/workloads.py`.

For the programs beside this one, in an interpreter that has `stable-baselines3`. Nothing of
Redline is imported.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize
from torch import Tensor

ALGORITHMS = ("sac", "td3", "dqn", "ppo")


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


def make_model(
    algo: str, settings: dict[str, Any], *, total_env_steps: int, seed: int, device: str = "cpu"
) -> Any:
    """The model with exactly these hyperparameters, in its environment.

    Args:
        algo: of `ALGORITHMS`.
        settings: by the names of the `peer` of a workload.
        total_env_steps: length of the run, for the schedules.
        seed: of everything.
        device: where it learns.
    """
    if algo == "ppo":
        return _make_ppo(settings, total_env_steps, seed, device)
    return _make_off_policy(algo, settings, seed, device)


def _make_off_policy(algo: str, settings: dict[str, Any], seed: int, device: str) -> Any:
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
        "device": device,
    }
    if algo == "dqn":
        if settings.get("squared_error"):
            _learn_by_squared_error()
        return DQN(
            "MlpPolicy",
            env,
            target_update_interval=settings["target_update_interval"],
            exploration_fraction=settings["epsilon_fraction"],
            exploration_final_eps=0.05,
            max_grad_norm=settings.get("max_grad_norm", 10.0),
            **shared,
        )
    if algo == "sac":
        return SAC("MlpPolicy", env, tau=settings["tau"], **shared)
    size = env.action_space.shape[0]  # pyright: ignore[reportOptionalSubscript]
    noise = NormalActionNoise(np.zeros(size), settings["exploration_noise"] * np.ones(size))
    return TD3("MlpPolicy", env, tau=settings["tau"], action_noise=noise, **shared)


def _learn_by_squared_error() -> None:
    """Half the square in place of DQN's Huber loss, which no setting changes, in this process."""

    def half_square(value: Tensor, target: Tensor) -> Tensor:
        return 0.5 * torch.nn.functional.mse_loss(value, target)

    torch.nn.functional.smooth_l1_loss = half_square


def _make_ppo(settings: dict[str, Any], total_env_steps: int, seed: int, device: str) -> Any:
    """PPO, on MuJoCo or on EnvPool's Atari; the learning rate falls linearly to 0."""
    num_envs = settings.get("num_envs", 1)
    if "num_envs" in settings:
        policy, env = "CnnPolicy", EnvPoolVecEnv(settings["env"], num_envs, seed)
        env = VecMonitor(env)
    else:
        policy, env = "MlpPolicy", DummyVecEnv([lambda: Monitor(gymnasium.make(settings["env"]))])
        if settings["normalize"]:
            env = VecNormalize(env)
    # It reckons what is left after a rollout; CleanRL and Redline before it.
    rollout = num_envs * settings["rollout_length"] / total_env_steps
    return PPO(
        policy,
        env,
        n_steps=settings["rollout_length"],
        batch_size=settings["batch_size"],
        n_epochs=settings["num_epochs"],
        learning_rate=lambda left: settings["learning_rate"] * (left + rollout),
        clip_range=settings["clip_range"],
        clip_range_vf=settings["clip_range_value"],
        ent_coef=settings["entropy_coef"],
        vf_coef=0.25,  # of the whole square there; CleanRL and Redline halve the square first
        seed=seed,
        device=device,
    )
