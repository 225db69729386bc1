"""The workloads whose speed is measured: CleanRL's hyperparameters, written down once.

Each says how to train it with Redline, with Stable-Baselines3 and with the single-file script,
and what one env_step costs at the least: one step of the raw environment, and the
multiplications of acting and learning.

Only what does not change the cost of a step differs from CleanRL: learning begins early, so
that a short run reaches its steady state.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One algorithm on one environment.

    Attributes:
        algorithm: as `redline train` knows it.
        settings: of `redline.train`.
        peer: the same hyperparameters by the names of `peers/stable_baselines3_train.py`.
        script: file in scripts/ that does the same.
        script_options: of that script, beside the length, the seed and the device. Its rows
            are what tells its speed: they must begin at the warm-up and end with the run.
        script_threads: the option that tells it torch's threads; None: it takes the environment's.
        env_backend: what steps the raw environment for the floor: gymnasium or envpool.
        num_envs: environments stepped together.
        warmup: env_steps before the clock starts, one whole cycle of learning included.
        measured: env_steps on the clock.
        flops: floating-point operations of acting and learning per env_step.
        product: (rows, in, out) of the largest matrix product, whose rate is the floor's.
    """

    algorithm: str
    settings: dict[str, Any]
    peer: dict[str, Any]
    script: str
    script_options: tuple[str, ...] = ()
    script_threads: str | None = None
    env_backend: str = "gymnasium"
    num_envs: int = 1
    warmup: int
    measured: int
    flops: float
    product: tuple[int, int, int]


def dense_flops(*sizes: int) -> float:
    """Operations of one row through dense layers of these widths, forward."""
    return sum(2.0 * fan_in * fan_out for fan_in, fan_out in pairwise(sizes))


def _sac_flops() -> float:
    """One update per step, a batch of 256: 17 observations, 6 actions, two layers of 256."""
    actor, critic = dense_flops(17, 256, 256, 12), dense_flops(23, 256, 256, 1)
    inner = critic - dense_flops(23, 256)  # backpropagation to inputs, down to the first layer
    # actions for target and actor's loss, its weights and inputs; target; critics with their
    # weights; critics in the actor's loss, down to the action
    passes = actor * 2 + (actor + dense_flops(256, 256, 12))
    passes += 2 * critic + 2 * (2 * critic + inner) + 2 * (critic + inner + dense_flops(6, 256))
    return 256 * passes + actor


def _td3_flops() -> float:
    """The actor learns at every second update, from one critic."""
    actor, critic = dense_flops(17, 256, 256, 6), dense_flops(23, 256, 256, 1)
    inner = critic - dense_flops(23, 256)
    passes = actor + 2 * critic + 2 * (2 * critic + inner)
    passes += 0.5 * (2 * actor + dense_flops(256, 256, 6) + critic + inner + dense_flops(6, 256))
    return 256 * passes + actor


def _dqn_flops() -> float:
    """One update of a batch of 128 in ten steps."""
    q, inner = dense_flops(4, 120, 84, 2), dense_flops(120, 84, 2)
    return 12.8 * (q + 2 * q + inner) + q


def _ppo_flops() -> float:
    """Ten epochs: forward, weights and inputs of two networks of two layers of 64."""
    both = dense_flops(17, 64, 64, 6) + dense_flops(17, 64, 64, 1)
    inner = dense_flops(64, 64, 6) + dense_flops(64, 64, 1)
    return 10 * (2 * both + inner) + both


def _atari_flops() -> float:
    """Four epochs of the three convolutions and two dense layers of the Nature network."""
    first = 2.0 * 20 * 20 * 32 * 4 * 8 * 8
    rest = 2.0 * (9 * 9 * 64 * 32 * 4 * 4 + 7 * 7 * 64 * 64 * 3 * 3) + dense_flops(3136, 512, 5)
    return 4 * (2 * first + 3 * rest) + first + rest


_CONTROL = {"env": "HalfCheetah-v5", "replay_size": 1_000_000, "learning_starts": 300}
_OFF_POLICY = {"replay_ratio": 256.0, "num_envs": 1, "rollout_length": 1, "batch_size": 256}
_WIDE = {"hidden_sizes": (256, 256), "activation": "relu", "tau": 0.005, "gamma": 0.99}
_PEER_CONTROL = _CONTROL | {"batch_size": 256, "hidden_sizes": [256, 256], "tau": 0.005}

WORKLOADS: dict[str, Workload] = {
    "sac": Workload(
        algorithm="sac",
        settings=_CONTROL
        | _OFF_POLICY
        | _WIDE
        | {"actor_learning_rate": 3e-4, "critic_learning_rate": 1e-3, "alpha_learning_rate": 1e-3},
        # One learning rate is all that it has; it changes no cost.
        peer=_PEER_CONTROL | {"learning_rate": 3e-4},
        script="sac_continuous.py",
        script_options=("--learning-starts", "300", "--log-every", "100"),
        warmup=500,
        measured=600,
        flops=_sac_flops(),
        product=(256, 256, 256),
    ),
    "td3": Workload(
        algorithm="td3",
        settings=_CONTROL
        | _OFF_POLICY
        | _WIDE
        | {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4},
        peer=_PEER_CONTROL | {"learning_rate": 3e-4, "exploration_noise": 0.1},
        script="td3_continuous.py",
        script_options=("--learning-starts", "300", "--log-every", "100"),
        warmup=500,
        measured=800,
        flops=_td3_flops(),
        product=(256, 256, 256),
    ),
    "dqn": Workload(
        algorithm="dqn",
        settings={
            "env": "CartPole-v1",
            "num_envs": 1,
            "rollout_length": 10,
            "replay_ratio": 12.8,  # one update of 128 per 10 steps
            "batch_size": 128,
            "replay_size": 10_000,
            "learning_starts": 1_000,
            "learning_rate": 2.5e-4,
            "adam_eps": 1e-8,
            "max_grad_norm": 0.0,
            "huber_threshold": None,
            "target_update_interval": 50,  # updates: 500 env_steps
            "epsilon_fraction": 0.01,  # the steady state: 5% random actions
            "hidden_sizes": (120, 84),
            "activation": "relu",
            "preset": "default",
        },
        peer={
            "env": "CartPole-v1",
            "batch_size": 128,
            "replay_size": 10_000,
            "learning_starts": 1_000,
            "learning_rate": 2.5e-4,
            "hidden_sizes": [120, 84],
            "train_interval": 10,
            "target_update_interval": 500,
            "epsilon_fraction": 0.01,  # the steady state: 5% random actions
        },
        script="dqn.py",
        script_options=(
            *("--learning-starts", "1000", "--log-every", "1000"),
            *("--epsilon-fraction", "0.01"),  # the steady state, as on the other sides
        ),
        script_threads="--num-threads",
        warmup=3_000,
        measured=15_000,
        flops=_dqn_flops(),
        product=(128, 120, 84),
    ),
    "ppo-continuous": Workload(
        algorithm="ppo",
        settings={
            "env": "HalfCheetah-v5",
            "preset": "default",
            "num_envs": 1,
            "rollout_length": 2048,
            "num_epochs": 10,
            "num_minibatches": 32,
            "learning_rate": 3e-4,
            "learning_rate_schedule": "linear",
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "clip_range_value": 0.2,
            "entropy_coef": 0.0,
            "normalize_obs": True,
            "scale_reward": True,
            "hidden_sizes": (64, 64),
            "activation": "tanh",
        },
        peer={
            "env": "HalfCheetah-v5",
            "rollout_length": 2048,
            "num_epochs": 10,
            "batch_size": 64,
            "learning_rate": 3e-4,
            "clip_range": 0.2,
            "clip_range_value": 0.2,
            "entropy_coef": 0.0,
            "normalize": True,
        },
        script="ppo_continuous.py",
        script_threads="--num-threads",
        warmup=2 * 2048,  # the second update is compared with the written one
        measured=3 * 2048,
        flops=_ppo_flops(),
        product=(64, 64, 64),
    ),
    "ppo-atari": Workload(
        algorithm="ppo",
        settings={
            "env": "Breakout-v5",
            "env_backend": "envpool",
            "env_kwargs": {"episodic_life": True, "reward_clip": True},
            "preset": "default",
            "num_envs": 8,
            "rollout_length": 128,
            "num_epochs": 4,
            "num_minibatches": 4,
            "learning_rate": 2.5e-4,
            "learning_rate_schedule": "linear",
            "clip_range": 0.1,
            "clip_range_value": 0.1,
            "entropy_coef": 0.01,
        },
        peer={
            "env": "Breakout-v5",
            "num_envs": 8,
            "rollout_length": 128,
            "num_epochs": 4,
            "batch_size": 256,
            "learning_rate": 2.5e-4,
            "clip_range": 0.1,
            "clip_range_value": 0.1,
            "entropy_coef": 0.01,
        },
        script="ppo_atari_envpool.py",
        env_backend="envpool",
        num_envs=8,
        warmup=1024,
        measured=3 * 1024,
        flops=_atari_flops(),
        product=(256, 3136, 512),
    ),
}
