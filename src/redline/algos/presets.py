"""Named hyperparameters of the built-in algorithms. Imports nothing: help must answer at once.

Each table is one algorithm's `presets`: name -> settings of the run, the network and the
algorithm. A preset named after a family of environments is taken for those by itself
(`train/presets.py`). A variant, such as rainbow, is laid over what the family gives.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]
Presets = dict[str, Settings]

WIDE: Settings = {"hidden_sizes": (256, 256), "activation": "relu"}
"""The networks of DDPG, TD3 and SAC."""

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

PPO: Presets = {
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
}

A2C: Presets = {
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
}

REINFORCE: Presets = {
    "cartpole": {"total_env_steps": 200_000},
}

IMPALA: Presets = {
    "cartpole": {
        "total_env_steps": 500_000,
        "learning_rate": 2e-3,
        "learning_rate_schedule": "linear",
    },
    "minatar": {"total_env_steps": 5_000_000, "num_envs": 32},
    "atari": {"total_env_steps": 10_000_000, "num_envs": 16},
}

DQN_DEFAULTS: Settings = {"hidden_sizes": (128, 128), "activation": "relu"}
R2D1_DEFAULTS: Settings = {
    "hidden_sizes": (64,),
    "activation": "relu",
    "core": "lstm",
    "core_size": 64,
    "observe_previous": True,
}

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

DQN: Presets = {"cartpole": _DQN_CARTPOLE, "minatar": _DQN_MINATAR, "atari": _DQN_ATARI}

R2D1: Presets = {
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
    },
    "minatar": {
        "total_env_steps": 1_000_000,
        "batch_size": 32,
        "replay_ratio": 8.0,
        "learning_rate": 5e-4,
        "target_update_interval": 200,
        "core_size": 128,
    },
    # Lengths, step size, discount, epsilons and networks of R2D2 (Kapturowski et al. 2019, table
    # 2); its epsilon of Adam and bound of the gradient divided by sequence_length. Its 2,500
    # updates between moves of the target and its ratio of 0.8 are for 10^10 frames: here the
    # budget makes 15,500 updates and 38 moves.
    "atari": {
        "total_env_steps": 10_000_000,
        "num_envs": 16,
        "rollout_length": 40,
        "sequence_length": 80,
        "state_interval": 40,
        "burn_in": 40,
        "n_step": 5,
        "batch_size": 32,
        "replay_size": 1_000_000,
        "replay_ratio": 4.0,
        "learning_starts": 80_000,
        "learning_rate": 1e-4,
        "learning_rate_schedule": "constant",
        "adam_eps": 1.25e-5,
        "max_grad_norm": 0.5,
        "target_update_interval": 400,
        "core_size": 512,
        "head_hidden_sizes": (512,),
        # Value rescaling takes the place of clipped rewards, and lives go on.
        "clip_reward": False,
        "episodic_life": False,
    },
}

DDPG: Presets = {
    "pendulum": _PENDULUM | {"total_env_steps": 40_000, "learning_rate": 1e-3},
    "mujoco": _MUJOCO,
}

TD3: Presets = {
    "pendulum": _PENDULUM | {"total_env_steps": 40_000, "learning_rate": 1e-3},
    "mujoco": _MUJOCO,
}

SAC: Presets = {
    "pendulum": _PENDULUM
    | {
        "total_env_steps": 20_000,
        "learning_rate": 1e-3,
    },
    "mujoco": _MUJOCO,
}

DIAYN: Presets = {
    "pendulum": _PENDULUM
    | {"total_env_steps": 40_000, "num_envs": 4, "learning_rate": 1e-3, "skill_length": 200},
    "mujoco": _MUJOCO | {"num_skills": 50, "skill_length": 1_000},
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
    "epsilon_final": 0.0,  # noisy layers explore; replay still begins with random actions
}
DQN_VARIANTS: Presets = {
    "dqn": {"double_q": False, "n_step": 1},
    "double-dqn": {"double_q": True, "n_step": 1},
    "rainbow": _RAINBOW,
    "apex-like": {
        "double_q": True,
        "dueling": True,
        "n_step": 3,
        "prioritized": True,
        "epsilon_schedule": "ape-x",
        # Horgan et al. 2018, arXiv:1803.00933: actors ahead of the learner, each with its epsilon.
        "collector": "async",
        "num_envs": 16,
    },
}

DQN_VARIANT_PRESETS: dict[tuple[str, str], Settings] = {
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
    },
    ("rainbow", "minatar"): {"v_min": -5.0, "v_max": 45.0},
}
"""(variant, family) -> what the variant needs there to be right, such as the range of returns."""
