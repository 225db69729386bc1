"""DDPG, TD3, SAC, TQC, CrossQ and DIAYN, and BC, which begins for them."""

from __future__ import annotations

from redline.algos.presets.table import Presets, Settings

WIDE: Settings = {"hidden_sizes": (256, 256), "activation": "relu"}
"""The networks of DDPG, TD3 and SAC."""

BC: Settings = {**WIDE, "eval_interval": 100_000}
"""SAC's networks, so that it can go on; without evaluations a run would show no return."""

_PENDULUM: Settings = {
    "replay_size": 100_000,
    "learning_starts": 1_000,
    "batch_size": 128,
    "replay_ratio": 128.0,
    "hidden_sizes": (64, 64),
}
_MUJOCO: Settings = {
    "total_env_steps": 1_000_000,
    "replay_size": 1_000_000,
    "learning_starts": 5_000,
    "batch_size": 256,
    "replay_ratio": 256.0,
}

# CleanRL's start. After 5,000 random env_steps one of two seeds of TD3 kept a slow gait on
# HalfCheetah; the same seed after 25,000 did not.
_LONG_START: Settings = _MUJOCO | {"learning_starts": 25_000}

_ZOO_DETERMINISTIC: Settings = {
    "gamma": 0.98,
    "replay_size": 200_000,
    "learning_starts": 10_000,
    "learning_rate": 1e-3,
    "hidden_sizes": (400, 300),
}
_ZOO_HARDCORE: Settings = {
    "learning_starts": 10_000,
    "learning_rate_schedule": "linear",
    "hidden_sizes": (400, 300),
}
_DETERMINISTIC_MOUNTAIN_CAR: Settings = {
    "total_env_steps": 300_000,
    "learning_starts": 1_000,
    "learning_rate": 1e-3,
    "hidden_sizes": (400, 300),
    "exploration_noise": 0.5,
    "noise_color": 1.0,
}
_DETERMINISTIC: Presets = {
    "pendulum": _PENDULUM | {"total_env_steps": 40_000, "learning_rate": 1e-3},
    "mountaincarcontinuous": _DETERMINISTIC_MOUNTAIN_CAR,
    "lunarlandercontinuous": _ZOO_DETERMINISTIC | {"total_env_steps": 300_000},
    "bipedalwalker": _ZOO_DETERMINISTIC | {"total_env_steps": 1_000_000},
    "bipedalwalkerhardcore": _ZOO_HARDCORE | {"total_env_steps": 10_000_000, "learning_rate": 7e-4},
    "mujoco": _LONG_START,
    "swimmer": _LONG_START | {"gamma": 0.9999},
}

DDPG: Presets = _DETERMINISTIC

TD3: Presets = _DETERMINISTIC

_SOFT_HARDCORE: Settings = _ZOO_HARDCORE | {"learning_rate": 7.3e-4, "tau": 0.01}
_FAST_CRITICS: Settings = _MUJOCO | {"critic_learning_rate": 1e-3, "alpha_learning_rate": 1e-3}

SAC: Presets = {
    "pendulum": _PENDULUM
    | {
        "total_env_steps": 20_000,
        "learning_rate": 1e-3,
    },
    "mountaincarcontinuous": {
        "total_env_steps": 50_000,
        "rollout_length": 32,
        "batch_size": 512,
        "gamma": 0.9999,
        "replay_size": 50_000,
        "replay_ratio": 512.0,
        "learning_starts": 5_000,
        "alpha": 0.1,
        "tau": 0.01,
        "hidden_sizes": (64, 64),
        "noise_color": 1.0,
    },
    "lunarlandercontinuous": {
        "total_env_steps": 500_000,
        "learning_starts": 10_000,
        "learning_rate": 7.3e-4,
        "learning_rate_schedule": "linear",
        "tau": 0.01,
        "hidden_sizes": (400, 300),
    },
    "bipedalwalker": {
        "total_env_steps": 500_000,
        "rollout_length": 64,
        "gamma": 0.98,
        "replay_size": 300_000,
        "learning_starts": 10_000,
        "learning_rate": 7.3e-4,
        "tau": 0.02,
        "hidden_sizes": (400, 300),
    },
    "bipedalwalkerhardcore": _SOFT_HARDCORE | {"total_env_steps": 10_000_000, "alpha": 0.005},
    "mujoco": _FAST_CRITICS,
    "swimmer": _FAST_CRITICS | {"gamma": 0.999},
}

# The zoo's TQC has two critics, the paper's five. An update with five takes three times as long.
_TWO_CRITICS: Settings = {"num_critics": 2}
_TQC_MUJOCO: Settings = _MUJOCO | _TWO_CRITICS | {"learning_starts": 10_000}

TQC: Presets = {name: settings | _TWO_CRITICS for name, settings in SAC.items()} | {
    "bipedalwalkerhardcore": _SOFT_HARDCORE | _TWO_CRITICS | {"total_env_steps": 2_000_000},
    "mujoco": _TQC_MUJOCO,
    "hopper": _TQC_MUJOCO | {"dropped_quantiles": 5},
    "swimmer": _TQC_MUJOCO | {"gamma": 0.999},
}

# Where the paper has no experiments, critics are as narrow as the zoo's: between layers of 2048
# there are 64 times the weights of 256.
CROSSQ: Presets = {
    "pendulum": {
        "total_env_steps": 20_000,
        "learning_starts": 1_000,
        "actor_update_interval": 2,
        "critic_hidden_sizes": (256, 256),
    },
    "mountaincarcontinuous": {
        "total_env_steps": 50_000,
        "rollout_length": 32,
        "gamma": 0.9999,
        "replay_size": 50_000,
        "learning_starts": 5_000,
        "learning_rate": 7e-4,
        "actor_update_interval": 2,
        "hidden_sizes": (64, 64),
        "critic_hidden_sizes": (64, 64),
        "noise_color": 1.0,
    },
    "lunarlandercontinuous": {
        "total_env_steps": 200_000,
        "learning_starts": 10_000,
        "critic_hidden_sizes": (1024, 1024),
    },
    "bipedalwalker": {
        "total_env_steps": 200_000,
        "gamma": 0.98,
        "replay_size": 300_000,
        "learning_starts": 10_000,
        "critic_hidden_sizes": (1024, 1024),
    },
    "mujoco": _MUJOCO,
    "swimmer": _MUJOCO | {"gamma": 0.999},
}

DIAYN: Presets = {
    "pendulum": _PENDULUM
    | {"total_env_steps": 40_000, "num_envs": 4, "learning_rate": 1e-3, "skill_length": 200},
    "mujoco": _MUJOCO | {"num_skills": 50, "skill_length": 1_000},
}
