"""Named hyperparameters of the built-in algorithms. Imports nothing: help must answer at once.

Each table is one algorithm's `presets`: name -> settings of the run, the network and the
algorithm. A preset named after a family of environments is taken for those by itself
(`train/presets.py`). A variant, such as rainbow, is laid over what the family gives.

`SOURCES` says where each set comes from. What comes from others is in Redline's names: a batch size
becomes a number of minibatches, gradient steps become a replay ratio, an interval of the target
network counts updates, and what only generalized state-dependent exploration has is left out.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]
Presets = dict[str, Settings]

WIDE: Settings = {"hidden_sizes": (256, 256), "activation": "relu"}
"""The networks of DDPG, TD3 and SAC."""

BC: Settings = {**WIDE, "eval_interval": 100_000}
"""SAC's networks, so that it can go on; without evaluations a run would show no return."""

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

_PPO_TOY_TEXT: Settings = {
    "total_env_steps": 500_000,
    "num_envs": 16,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 8,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "entropy_coef": 0.01,
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
    "swimmer": _PPO_MUJOCO | {"gamma": 0.9999, "gae_lambda": 0.98},
    "lunarlander": {
        "total_env_steps": 1_000_000,
        "num_envs": 16,
        "rollout_length": 1_024,
        "num_epochs": 4,
        "num_minibatches": 256,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "learning_rate": 3e-4,
        "entropy_coef": 0.01,
    },
    "bipedalwalker": {
        "total_env_steps": 5_000_000,
        "num_envs": 32,
        "rollout_length": 2_048,
        "num_epochs": 10,
        "num_minibatches": 1_024,
        "gamma": 0.999,
        "learning_rate": 3e-4,
        "clip_range": 0.18,
        "normalize_obs": True,
        "scale_reward": True,
    },
    "acrobot": {
        "total_env_steps": 1_000_000,
        "num_envs": 16,
        "rollout_length": 256,
        "num_epochs": 4,
        "num_minibatches": 64,
        "gae_lambda": 0.94,
        "learning_rate": 3e-4,
        "normalize_obs": True,
        "scale_reward": True,
    },
    "mountaincar": {
        "total_env_steps": 1_000_000,
        "num_envs": 16,
        "rollout_length": 16,
        "num_epochs": 4,
        "num_minibatches": 4,
        "gae_lambda": 0.98,
        "learning_rate": 3e-4,
        "normalize_obs": True,
        "scale_reward": True,
    },
    # White noise cancels itself out and never reaches the flag.
    "mountaincarcontinuous": {
        "total_env_steps": 20_000,
        "num_envs": 4,
        "rollout_length": 256,
        "gamma": 0.999,
        "noise_color": 1.0,
        "normalize_obs": True,
        "scale_reward": True,
    },
    "pendulum": {
        "total_env_steps": 100_000,
        "num_envs": 4,
        "rollout_length": 1_024,
        "num_epochs": 10,
        "num_minibatches": 64,
        "gamma": 0.9,
        "learning_rate": 1e-3,
    },
    "toytext": _PPO_TOY_TEXT,
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

# The zoo's tunings weight the whole squared error of the value; value_coef here its half.
_A2C_TUNED: Settings = {
    "rollout_length": 8,
    "gae_lambda": 0.9,
    "value_coef": 0.8,
    "entropy_coef": 0.0,
    "learning_rate_schedule": "linear",
    "normalize_obs": True,
    "scale_reward": True,
}
_A2C_NORMALIZED: Settings = {
    "num_envs": 16,
    "value_coef": 1.0,
    "entropy_coef": 0.0,
    "normalize_obs": True,
    "scale_reward": True,
}
# One step per rollout moves the mean too little to help: the noise alone must reach the flag.
# State-dependent noise is as large in the zoo's tuning.
_A2C_SWING: Settings = {
    "num_envs": 4,
    "rollout_length": 100,
    "value_coef": 1.0,
    "entropy_coef": 0.0,
    "initial_log_std": 1.0,
    "noise_color": 1.0,
    "normalize_obs": True,
    "scale_reward": True,
}

A2C: Presets = {
    "cartpole": {"total_env_steps": 500_000, "learning_rate_schedule": "linear"},
    "lunarlander": {
        "total_env_steps": 200_000,
        "gamma": 0.995,
        "value_coef": 1.0,
        "learning_rate": 8.3e-4,
        "learning_rate_schedule": "linear",
        "entropy_coef": 1e-5,
    },
    "lunarlandercontinuous": _A2C_TUNED | {"total_env_steps": 5_000_000, "num_envs": 4},
    "bipedalwalker": _A2C_TUNED
    | {"total_env_steps": 5_000_000, "num_envs": 16, "learning_rate": 9.6e-4},
    "mountaincarcontinuous": _A2C_SWING | {"total_env_steps": 100_000},
    "pendulum": _A2C_TUNED | {"total_env_steps": 1_000_000, "num_envs": 8, "gamma": 0.9},
    "acrobot": _A2C_NORMALIZED | {"total_env_steps": 500_000},
    "mountaincar": _A2C_NORMALIZED | {"total_env_steps": 1_000_000},
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
    # With fresh rollouts and gae_lambda 1 it is A2C, to the last digit of the curve.
    "mountaincarcontinuous": _A2C_SWING | {"total_env_steps": 100_000},
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

_DQN_TUNED: dict[str, Any] = {
    "total_env_steps": 100_000,
    "rollout_length": 4,
    "hidden_sizes": (256, 256),
    "batch_size": 128,
    "replay_size": 50_000,
    "replay_ratio": 128.0,
    "learning_starts": 128,
    "learning_rate": 6.3e-4,
    "target_update_interval": 250,
    "epsilon_fraction": 0.12,
    "epsilon_final": 0.1,
}
_DQN_MOUNTAIN_CAR: dict[str, Any] = {
    "total_env_steps": 120_000,
    "rollout_length": 16,
    "hidden_sizes": (256, 256),
    "batch_size": 128,
    "gamma": 0.98,
    "replay_size": 10_000,
    "replay_ratio": 64.0,
    "learning_starts": 1_000,
    "learning_rate": 4e-3,
    "target_update_interval": 300,
    "epsilon_fraction": 0.2,
    "epsilon_final": 0.07,
}

DQN: Presets = {
    "cartpole": _DQN_CARTPOLE,
    "lunarlander": _DQN_TUNED,
    "acrobot": _DQN_TUNED,
    "mountaincar": _DQN_MOUNTAIN_CAR,
    "minatar": _DQN_MINATAR,
    "atari": _DQN_ATARI,
}

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
        "replay_ratio": 32.0,
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
    # R2D2's epsilon of Adam and bound of the gradient divided by sequence_length. Its 2,500
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

_ZOO_DETERMINISTIC: dict[str, Any] = {
    "gamma": 0.98,
    "replay_size": 200_000,
    "learning_starts": 10_000,
    "learning_rate": 1e-3,
    "hidden_sizes": (400, 300),
}
_DETERMINISTIC_MOUNTAIN_CAR: dict[str, Any] = {
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
    "mujoco": _MUJOCO,
    "swimmer": _MUJOCO | {"gamma": 0.9999},
}

DDPG: Presets = _DETERMINISTIC

TD3: Presets = _DETERMINISTIC

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
    "mujoco": _MUJOCO,
    "swimmer": _MUJOCO | {"gamma": 0.999},
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


def _zoo(env: str, but: str = "") -> str:
    return f"RL Baselines3 Zoo, {env}{f', but {but}' if but else ''}"


def _cleanrl(script: str, but: str = "") -> str:
    return f"CleanRL, {script}.py{f', but {but}' if but else ''}"


_OWN = "own tuning"
_NO_SDE = "without state-dependent exploration"
_HALF = "the value's loss has half the weight: its square is halved here"
_PPO_SOURCES = {
    "cartpole": _zoo("CartPole-v1", _HALF),
    "recurrent": _zoo(
        "CartPoleNoVel-v1 of ppo_lstm", "a longer run, tanh and one LSTM for actor and critic"
    ),
    "memory": _OWN,
    "mujoco": _cleanrl(
        "ppo_continuous_action",
        "16 environments of 128 steps for one of 2,048, values are not clipped",
    ),
    "swimmer": "as mujoco; gamma and gae_lambda of RL Baselines3 Zoo, Swimmer-v4",
    "lunarlander": _zoo("LunarLander-v3", _HALF),
    "bipedalwalker": _zoo("BipedalWalker-v3", _HALF),
    "acrobot": _zoo("Acrobot-v1", _HALF),
    "mountaincar": _zoo("MountainCar-v0", _HALF),
    "mountaincarcontinuous": f"{_OWN}; length of RL Baselines3 Zoo, pink noise of Eberhard et al. "
    "2023",
    "pendulum": _zoo("Pendulum-v1", f"{_NO_SDE}; {_HALF}"),
    "toytext": _OWN,
    "halfcheetah": "as mujoco; gamma, gae_lambda, value_coef and max_grad_norm of RL Baselines3 "
    "Zoo, HalfCheetah-v4; initial_log_std is own tuning",
    "atari": _cleanrl("ppo_atari", "values are not clipped"),
    "minatar": _OWN,
}
_DETERMINISTIC_SOURCES = {
    "pendulum": _OWN,
    "mountaincarcontinuous": _zoo(
        "MountainCarContinuous-v0", "pink noise for Ornstein-Uhlenbeck's, a longer start at random"
    ),
    "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3"),
    "bipedalwalker": _zoo("BipedalWalker-v3"),
    "swimmer": "as mujoco; gamma of RL Baselines3 Zoo, Swimmer-v4",
}
_SHORTER_START = "a start of 5,000 random env_steps for 25,000"
_SAC_SOURCES = {
    "pendulum": f"{_OWN}; length and learning rate of RL Baselines3 Zoo, Pendulum-v1",
    "mountaincarcontinuous": _zoo(
        "MountainCarContinuous-v0",
        "pink noise for state-dependent exploration, a longer start at random",
    ),
    "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3"),
    "bipedalwalker": _zoo("BipedalWalker-v3", _NO_SDE),
    "mujoco": _cleanrl("sac_continuous_action", "critics learn at 3e-4, not at 1e-3"),
    "swimmer": "as mujoco; gamma of RL Baselines3 Zoo, Swimmer-v4",
}

SOURCES: dict[str, dict[str, str]] = {
    "ppo": _PPO_SOURCES,
    "appo": {name: f"PPO's: {source}" for name, source in _PPO_SOURCES.items()},
    "a2c": {
        "cartpole": _zoo(
            "CartPole-v1",
            "a falling learning rate, entropy_coef of 0.01 for 0, half the weight of the value",
        ),
        "lunarlander": _zoo("LunarLander-v3"),
        "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3", _NO_SDE),
        "bipedalwalker": _zoo("BipedalWalker-v3", _NO_SDE),
        "mountaincarcontinuous": _zoo(
            "MountainCarContinuous-v0", "large pink noise for state-dependent exploration"
        ),
        "pendulum": _zoo("Pendulum-v1", _NO_SDE),
        "acrobot": _zoo("Acrobot-v1"),
        "mountaincar": _zoo("MountainCar-v0"),
        "mujoco": _OWN,
        "atari": _zoo("atari", "RMSprop as torch's"),
        "minatar": _OWN,
    },
    "reinforce": {"cartpole": _OWN},
    "impala": {
        "cartpole": _OWN,
        "mountaincarcontinuous": "A2C's",
        "minatar": _OWN,
        "atari": _OWN,
    },
    "dqn": {
        "cartpole": f"{_OWN}; networks and replay_size of RL Baselines3 Zoo, CartPole-v1",
        "lunarlander": _zoo("LunarLander-v3", "a start of 128 random env_steps for none"),
        "acrobot": _zoo("Acrobot-v1", "a start of 128 random env_steps for none"),
        "mountaincar": _zoo("MountainCar-v0"),
        "minatar": _OWN,
        "atari": _cleanrl(
            "dqn_atari",
            "8 environments for one, the target moves at every 1,000th update, not env_step",
        ),
        "dqn": "Mnih et al. 2015",
        "double-dqn": "van Hasselt et al. 2016, arXiv:1509.06461",
        "rainbow": "Hessel et al. 2018, arXiv:1710.02298; range and size on a family: own tuning",
        "apex-like": "Horgan et al. 2018, arXiv:1803.00933; 16 actors for 360",
    },
    "r2d1": {
        "memory": _OWN,
        "minatar": _OWN,
        "atari": "Kapturowski et al. 2019 (R2D2), table 2; adam_eps and max_grad_norm as of a mean "
        "loss, more updates per env_step",
    },
    "ddpg": _DETERMINISTIC_SOURCES | {"mujoco": _cleanrl("ddpg_continuous_action", _SHORTER_START)},
    "td3": _DETERMINISTIC_SOURCES | {"mujoco": _cleanrl("td3_continuous_action", _SHORTER_START)},
    "sac": _SAC_SOURCES,
    "tqc": {name: f"SAC's: {source}" for name, source in _SAC_SOURCES.items()},
    "crossq": {
        "pendulum": _zoo("Pendulum-v1", "a start of 1,000 random env_steps for 100"),
        "mountaincarcontinuous": _zoo(
            "MountainCarContinuous-v0",
            "pink noise for state-dependent exploration, a longer start at random",
        ),
        "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3"),
        "bipedalwalker": _zoo("BipedalWalker-v3"),
        "mujoco": "Bhatt et al. 2024, arXiv:1902.05605",
        "swimmer": "as mujoco; gamma of RL Baselines3 Zoo, Swimmer-v4",
    },
    "diayn": {"pendulum": _OWN, "mujoco": _OWN},
}
"""Algorithm -> preset or variant -> where its values come from, compared with the zoo's
(github.com/DLR-RM/rl-baselines3-zoo, folder hyperparams, at 22e3ff2) and CleanRL's
(github.com/vwxyzjn/cleanrl, at fe8d8a0)."""
