"""Named hyperparameters per algorithm, and which of them an environment gets by itself.

`--preset NAME` starts from a set; options given beside it win. `--preset auto` looks the
environment up in `FAMILIES`; `--preset default` takes the plain defaults.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from redline.algos.configs import CONFIGS
from redline.errors import UnknownNameError
from redline.train.presets.off_policy import (
    DEFAULTS,
    OFF_POLICY_PRESETS,
    VARIANT_FAMILIES,
    VARIANTS,
)
from redline.train.settings import PolicySettings, RunConfig, RunSettings, check_algorithm

FAMILIES: tuple[tuple[str, str], ...] = (
    (r"^(redline/)?CartPole-v\d$", "cartpole"),
    (r"^HalfCheetah-v\d$", "halfcheetah"),
    (
        r"^(Hopper|Walker2d|Ant|Swimmer|Humanoid|HumanoidStandup|Reacher|Pusher"
        r"|InvertedPendulum|InvertedDoublePendulum)-v\d$",
        "mujoco",
    ),
    (r"^ALE/", "atari"),
    (r"^MinAtar/", "minatar"),
    (r"^redline/(Asterix|Breakout|Freeway|Seaquest|SpaceInvaders)-v\d$", "minatar"),
    (r"^(redline/)?Pendulum-v\d$", "pendulum"),
    (r"^redline/CartPoleHiddenVelocity-v\d$", "recurrent"),
    (r"^redline/TMaze-v\d$", "memory"),
)
"""(pattern of the environment's id, preset) in the order in which they are tried."""

_PARENTS = {"halfcheetah": "mujoco"}
"""The family that a more special one falls back to, where an algorithm has no preset for it."""

_PPO_MUJOCO: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "num_envs": 16,
    "rollout_length": 128,
    "num_epochs": 10,
    "num_minibatches": 32,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "linear",
    "normalize_obs": True,
    "scale_reward": True,
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "cartpole": {
            "total_env_steps": 100_000,
            "num_envs": 8,
            "rollout_length": 32,
            "num_epochs": 20,
            "num_minibatches": 1,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "clip_range_schedule": "linear",
        },
        "recurrent": {
            "total_env_steps": 400_000,
            "num_envs": 8,
            "rollout_length": 32,
            "num_epochs": 20,
            "num_minibatches": 1,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "clip_range_schedule": "linear",
            "normalize_obs": True,
            "core": "lstm",
            "core_size": 64,
        },
        "memory": {
            "total_env_steps": 80_000,
            "num_envs": 16,
            "rollout_length": 64,
            # Once solved, advantages are nearly 0: normalized, they are noise of full size.
            "normalize_advantage": False,
            "num_epochs": 4,
            "num_minibatches": 4,
            "gamma": 0.98,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "entropy_coef": 0.01,
            "hidden_sizes": (64,),
            "core": "transformer",
            "core_size": 64,
            "core_window": 16,
        },
        "mujoco": _PPO_MUJOCO,
        # A shorter horizon and less initial noise: with the general ones, some seeds stay on
        # a gait that slides on the back.
        "halfcheetah": _PPO_MUJOCO
        | {
            "gamma": 0.98,
            "gae_lambda": 0.92,
            "value_coef": 0.58,
            "max_grad_norm": 0.8,
            "initial_log_std": -1.0,
        },
        "atari": {
            "total_env_steps": 10_000_000,
            "num_envs": 8,
            "rollout_length": 128,
            "num_epochs": 4,
            "num_minibatches": 4,
            "learning_rate": 2.5e-4,
            "learning_rate_schedule": "linear",
            "clip_range": 0.1,
            "entropy_coef": 0.01,
        },
        "minatar": {
            "total_env_steps": 2_000_000,
            "num_envs": 32,
            "rollout_length": 64,
            "num_epochs": 4,
            "num_minibatches": 8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "entropy_coef": 0.01,
        },
    },
    "a2c": {
        "cartpole": {"total_env_steps": 500_000, "learning_rate_schedule": "linear"},
        "mujoco": {
            "total_env_steps": 1_000_000,
            "num_envs": 16,
            "rollout_length": 8,
            "gae_lambda": 0.95,
            "learning_rate_schedule": "linear",
            "entropy_coef": 0.0,
            "normalize_obs": True,
            "scale_reward": True,
        },
        "atari": {"total_env_steps": 10_000_000, "num_envs": 16},
        "minatar": {"total_env_steps": 5_000_000, "num_envs": 32},
    },
    "reinforce": {
        "cartpole": {"total_env_steps": 200_000},
    },
    "impala": {
        "cartpole": {
            "total_env_steps": 500_000,
            "learning_rate": 2e-3,
            "learning_rate_schedule": "linear",
        },
        "minatar": {"total_env_steps": 5_000_000, "num_envs": 32},
        "atari": {"total_env_steps": 10_000_000, "num_envs": 16},
    },
    **OFF_POLICY_PRESETS,
}
# What suits PPO suits it here too: with fresh rollouts the two are the same.
PRESETS["appo"] = PRESETS["ppo"]


def family(env: str) -> str:
    """The preset that belongs to an environment's id; "default" if none does."""
    for pattern, name in FAMILIES:
        if re.search(pattern, env):
            return name
    return "default"


def preset_config(algorithm: str, env: str, preset: str) -> RunConfig:
    """The config that a preset gives, to change options of.

    Args:
        algorithm: name of the algorithm.
        env: id of the environment; "" if it has none.
        preset: a name in `PRESETS[algorithm]`, "auto" or "default".

    Raises:
        UnknownNameError: if there is no such algorithm or preset.
    """
    plain = RunConfig(
        algorithm=check_algorithm(algorithm),
        run=RunSettings(env=env),
        policy=PolicySettings(),
        algo=CONFIGS[algorithm](),
    ).replace(**DEFAULTS.get(algorithm, {}))
    known, variants = PRESETS.get(algorithm, {}), VARIANTS.get(algorithm, {})
    if preset in variants:
        own = _family_with_preset(known, env)
        changes = known.get(own, {}) | variants[preset] | VARIANT_FAMILIES.get((preset, own), {})
        return plain.replace(**changes, preset=preset)
    name = _family_with_preset(known, env) if preset == "auto" else preset
    if name == "default":
        return plain.replace(preset=name)
    if name not in known:
        choices = sorted({*known, *variants})
        close = difflib.get_close_matches(name, choices, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UnknownNameError(
            f"{algorithm} has no preset {preset!r}{hint}. Choose one of: auto, default, "
            f"{', '.join(choices)}."
        )
    return plain.replace(**known[name], preset=name)


def _family_with_preset(known: dict[str, dict[str, Any]], env: str) -> str:
    """The environment's family, its parent if only that has a preset, or "default"."""
    name = family(env)
    if name in known:
        return name
    parent = _PARENTS.get(name)
    return parent if parent in known else "default"
