"""DQN, its variants, and R2D1."""

from __future__ import annotations

from redline.algos.presets.table import Presets, Settings

DQN_DEFAULTS: Settings = {"hidden_sizes": (128, 128), "activation": "relu"}
R2D1_DEFAULTS: Settings = {
    "hidden_sizes": (64,),
    "activation": "relu",
    "core": "lstm",
    "core_size": 64,
    "observe_previous": True,
}

_DQN_CARTPOLE: Settings = {
    "total_env_steps": 100_000,
    "num_envs": 8,
    "rollout_length": 4,
    "hidden_sizes": (256, 256),
    "batch_size": 128,
    "n_step": 3,
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
_DQN_MINATAR: Settings = {
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
_DQN_ATARI: Settings = {
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

_DQN_TUNED: Settings = {
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
# With the zoo's settings some seeds hover for long and then lose all they had learned (-301).
# Here replay keeps all transitions of 100,000 env_steps, and the target follows slowly.
_DQN_LUNAR_LANDER: Settings = {
    **_DQN_TUNED,
    "n_step": 3,
    "double_q": True,
    "replay_size": 100_000,
    "learning_rate_schedule": "linear",
    "target_update_interval": 1,
    "tau": 0.005,
}
_DQN_MOUNTAIN_CAR: Settings = {
    "total_env_steps": 120_000,
    "rollout_length": 16,
    "hidden_sizes": (256, 256),
    "batch_size": 128,
    "gamma": 0.98,
    "n_step": 3,
    "double_q": True,
    "replay_size": 50_000,
    "replay_ratio": 64.0,
    "learning_starts": 1_000,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "target_update_interval": 1,
    "tau": 0.005,
    "epsilon_fraction": 0.2,
    "epsilon_final": 0.07,
}

DQN: Presets = {
    "cartpole": _DQN_CARTPOLE,
    "lunarlander": _DQN_LUNAR_LANDER,
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

_RAINBOW: Settings = {
    "double_q": True,
    "dueling": True,
    "noisy": True,
    "value_distribution": "categorical",
    "n_step": 3,
    "prioritized": True,
    "priority_alpha": 0.5,
    "priority_beta": 0.4,
    "epsilon_final": 0.0,  # noisy layers explore; actions at random fade out at the start
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

_LUNAR_COPIES: Settings = {"tau": 1.0, "target_update_interval": 250}
_CAR_COPIES: Settings = {"tau": 1.0, "target_update_interval": 300}

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
    ("rainbow", "atari"): {  # table 4 of the paper
        "head_hidden_sizes": (512,),
        "learning_starts": 20_000,  # 80,000 frames
        "learning_rate": 6.25e-5,
        "adam_eps": 1.5e-4,
        "target_update_interval": 2_000,  # 32,000 frames, an update for every 16
        "epsilon_fraction": 0.002,  # of 10M: random actions fade out until updates begin
    },
    # Their papers copy the online network from time to time.
    **{(name, "lunarlander"): _LUNAR_COPIES for name in DQN_VARIANTS},
    **{(name, "mountaincar"): _CAR_COPIES for name in DQN_VARIANTS},
    # -1 a step adds up to 100 with gamma 0.99, and to 50 with 0.98.
    ("rainbow", "acrobot"): {"v_min": -100.0, "v_max": 0.0},
    ("rainbow", "mountaincar"): _CAR_COPIES | {"v_min": -50.0, "v_max": 0.0},
    ("rainbow", "lunarlander"): _LUNAR_COPIES | {"v_min": -300.0, "v_max": 300.0},
}
"""(variant, family) -> what the variant needs there to be right, such as the range of returns."""
