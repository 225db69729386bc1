"""Named hyperparameters of the off-policy algorithms; see `presets`.

A variant of DQN, such as rainbow, is laid over what the environment's family gives; what
it needs there to be right (the range of the returns, say) stands in `VARIANT_FAMILIES`.
"""

from __future__ import annotations

from typing import Any

_WIDE: dict[str, Any] = {"hidden_sizes": (256, 256), "activation": "relu"}

DEFAULTS: dict[str, dict[str, Any]] = {
    "dqn": {"hidden_sizes": (128, 128), "activation": "relu"},
    "r2d1": {"hidden_sizes": (128,), "activation": "relu", "core": "lstm"},
    "ddpg": _WIDE,
    "td3": _WIDE,
    "sac": _WIDE,
    "diayn": _WIDE,
}
"""What differs from the general defaults for an algorithm, whatever the environment."""

_DQN_CARTPOLE: dict[str, Any] = {
    "total_env_steps": 100_000,
    "num_envs": 8,
    "rollout_length": 4,
    "hidden_sizes": (256, 256),
    "batch_size": 128,
    "n_step": 10,
    "double_q": True,
    "replay_size": 100_000,
    "replay_ratio": 32.0,
    "learning_starts": 1_000,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "target_update_interval": 100,
    "epsilon_fraction": 0.2,
    "epsilon_final": 0.04,
}
_DQN_MINATAR: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "num_envs": 16,
    "rollout_length": 4,
    "batch_size": 64,
    "replay_size": 200_000,
    "replay_ratio": 8.0,
    "learning_starts": 5_000,
    "learning_rate": 5e-4,
    "learning_rate_schedule": "linear",
    "target_update_interval": 500,
    "epsilon_fraction": 0.1,
    "epsilon_final": 0.01,
    "double_q": True,
    "n_step": 3,
}
_DQN_ATARI: dict[str, Any] = {
    "total_env_steps": 10_000_000,
    "num_envs": 8,
    "rollout_length": 4,
    "batch_size": 32,
    "replay_size": 1_000_000,
    "replay_ratio": 8.0,
    "learning_starts": 80_000,
    "learning_rate": 1e-4,
    "target_update_interval": 1_000,
    "epsilon_fraction": 0.1,
    "epsilon_final": 0.01,
}
_PENDULUM: dict[str, Any] = {
    "replay_size": 100_000,
    "learning_starts": 1_000,
    "batch_size": 128,
    "replay_ratio": 128.0,
    "hidden_sizes": (64, 64),
}
_MUJOCO: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "replay_size": 1_000_000,
    "learning_starts": 5_000,
    "batch_size": 256,
    "replay_ratio": 256.0,
}

OFF_POLICY_PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "dqn": {"cartpole": _DQN_CARTPOLE, "minatar": _DQN_MINATAR, "atari": _DQN_ATARI},
    "r2d1": {
        "memory": {
            "total_env_steps": 100_000,
            "num_envs": 16,
            "rollout_length": 10,
            "sequence_length": 20,
            "state_interval": 10,
            "burn_in": 5,
            "n_step": 3,
            "batch_size": 32,
            "replay_size": 50_000,
            "replay_ratio": 16.0,
            "learning_starts": 2_000,
            "learning_rate": 2e-3,
            "learning_rate_schedule": "linear",
            "adam_eps": 1e-5,
            "target_update_interval": 100,
            "epsilon_schedule": "linear",
            "epsilon_fraction": 0.3,
            "hidden_sizes": (64,),
            "core_size": 64,
        },
        "atari": {
            "total_env_steps": 10_000_000,
            "num_envs": 16,
            "rollout_length": 40,
            "sequence_length": 80,
            "state_interval": 40,
            "burn_in": 40,
            "n_step": 5,
            "batch_size": 32,
            "replay_ratio": 1.0,
            "learning_starts": 80_000,
            "core_size": 512,
        },
    },
    "ddpg": {
        "pendulum": _PENDULUM | {"total_env_steps": 40_000, "learning_rate": 1e-3},
        "mujoco": _MUJOCO,
    },
    "td3": {
        "pendulum": _PENDULUM | {"total_env_steps": 40_000, "learning_rate": 1e-3},
        "mujoco": _MUJOCO,
    },
    "sac": {
        "pendulum": _PENDULUM
        | {
            "total_env_steps": 20_000,
            "learning_rate": 1e-3,
        },
        "mujoco": _MUJOCO,
    },
    "diayn": {
        "pendulum": _PENDULUM
        | {"total_env_steps": 40_000, "num_envs": 4, "learning_rate": 1e-3, "skill_length": 200},
        "mujoco": _MUJOCO | {"num_skills": 50, "skill_length": 1_000},
    },
}

_RAINBOW: dict[str, Any] = {
    "double_q": True,
    "dueling": True,
    "noisy": True,
    "value_distribution": "categorical",
    "n_step": 3,
    "prioritized": True,
    "priority_alpha": 0.5,
    "priority_beta": 0.4,
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "dqn": {
        "dqn": {"double_q": False, "n_step": 1},
        "double-dqn": {"double_q": True, "n_step": 1},
        "rainbow": _RAINBOW,
        "apex-like": {
            "double_q": True,
            "dueling": True,
            "n_step": 3,
            "prioritized": True,
            "epsilon_schedule": "ape-x",
        },
    }
}
"""Presets that are laid over the family's."""

VARIANT_FAMILIES: dict[tuple[str, str], dict[str, Any]] = {
    ("rainbow", "cartpole"): {
        "hidden_sizes": (128, 128),
        "batch_size": 64,
        "gamma": 0.98,
        "replay_ratio": 16.0,
        "learning_rate": 1e-3,
        "target_update_interval": 100,
        "v_min": 0.0,
        "v_max": 50.0,  # 1 / (1 - gamma), what balancing for ever is worth
        "epsilon_fraction": 0.1,
        "epsilon_final": 0.0,
    },
    ("rainbow", "minatar"): {"v_min": -5.0, "v_max": 45.0},
}
"""(variant, family) -> what the variant needs there."""
