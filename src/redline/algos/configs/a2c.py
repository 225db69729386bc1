"""Hyperparameters of A2C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import (
    require_fraction,
    require_not_negative,
    require_positive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class A2CConfig:
    """Hyperparameters of A2C, the synchronous form of Mnih et al. 2016, arXiv:1602.01783.

    Raises:
        ConfigError: if a value is out of range.
    """

    num_envs: int = 8
    """B, environments stepped in parallel."""
    rollout_length: int = 5
    """T, env_steps per environment per iteration; one optimiser step each."""
    gamma: float = 0.99
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float = 1.0
    """Lambda of generalised advantage estimation, in [0, 1]; 1 is A2C's n-step return."""
    normalize_advantage: bool = False
    """Whether advantages get mean 0 and standard deviation 1 in each rollout."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """Which optimiser; RMSprop (smoothing 0.99) is the original's."""
    learning_rate: float = 7e-4
    """The optimiser's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer_eps: float = 1e-5
    """The optimiser's epsilon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    scale_reward: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return."""

    def __post_init__(self) -> None:
        require_positive(
            num_envs=self.num_envs,
            rollout_length=self.rollout_length,
            learning_rate=self.learning_rate,
            optimizer_eps=self.optimizer_eps,
        )
        require_fraction(gamma=self.gamma, gae_lambda=self.gae_lambda)
        require_not_negative(
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            max_grad_norm=self.max_grad_norm,
        )
