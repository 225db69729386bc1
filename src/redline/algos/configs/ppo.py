"""Hyperparameters of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import (
    require_fraction,
    require_not_negative,
    require_positive,
)
from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Hyperparameters of PPO; symbols as in Schulman et al. 2017, arXiv:1707.06347.

    Raises:
        ConfigError: if a value is out of range, or a rollout does not split into equal
            minibatches.
    """

    num_envs: int = 8
    """B, environments stepped in parallel."""
    rollout_length: int = 128
    """T, env_steps per environment per iteration."""
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Equal parts of a rollout (of its environments, for a recurrent policy)."""
    gamma: float = 0.99
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation, in [0, 1]."""
    clip_range: float = 0.2
    """Epsilon: the ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    """How clip_range changes with env_steps; linear reaches 0 at total_env_steps."""
    clip_range_value: float | None = None
    """Largest change of the value prediction that the value loss rewards; None: unclipped."""
    normalize_advantage: bool = True
    """Whether advantages get mean 0 and standard deviation 1 in each minibatch."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    learning_rate: float = 2.5e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_kl: float | None = None
    """Skip the rest of an iteration's steps once the KL estimate passes this, in nats.
    None: never."""
    scale_reward: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return."""

    def __post_init__(self) -> None:
        require_positive(
            num_envs=self.num_envs,
            rollout_length=self.rollout_length,
            num_epochs=self.num_epochs,
            num_minibatches=self.num_minibatches,
            clip_range=self.clip_range,
            learning_rate=self.learning_rate,
            adam_eps=self.adam_eps,
        )
        require_fraction(gamma=self.gamma, gae_lambda=self.gae_lambda)
        require_not_negative(
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            max_grad_norm=self.max_grad_norm,
        )
        if self.target_kl is not None:
            require_positive(target_kl=self.target_kl)
        if self.clip_range_value is not None:
            require_positive(clip_range_value=self.clip_range_value)
        samples = self.num_envs * self.rollout_length
        if samples % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches={self.num_minibatches} does not divide the rollout: num_envs * "
                f"rollout_length = {self.num_envs} * {self.rollout_length} = {samples} samples, "
                f"{samples % self.num_minibatches} left over. Use a divisor of {samples}."
            )
