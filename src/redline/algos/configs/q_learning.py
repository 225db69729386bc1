"""Hyperparameters that DQN and R2D1 share. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import require_fraction, require_not_negative, require_positive
from redline.algos.configs.off_policy import OffPolicyConfig
from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class QLearningConfig(OffPolicyConfig):
    """What every Q-learner of discrete actions has.

    Raises:
        ConfigError: if a value is out of range.
    """

    double_q: bool = False
    """Whether the online network chooses the action that the target network values
    (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Whether Q is a state value plus advantages less their mean over actions
    (Wang et al. 2016)."""
    head_hidden_sizes: tuple[int, ...] = ()
    """Hidden layers of each stream between the torso (or core) and the outputs."""
    huber_threshold: float | None = 1.0
    """TD errors beyond it count linearly; kappa of the quantile losses. None: squared error."""
    learning_rate: float = 1e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_update_interval: int = 1_000
    """Optimiser steps between updates of the target network."""
    tau: float = 1.0
    """Share of the online parameters in each update of the target; 1 copies them."""
    epsilon_schedule: Literal["linear", "ape-x"] = "linear"
    """linear: one epsilon for all environments, falling with global env_steps.
    ape-x: a constant one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""
    epsilon_initial: float = 1.0
    """Share of random actions at the start (linear)."""
    epsilon_final: float = 0.05
    """Share of random actions from epsilon_fraction * total_env_steps on (linear)."""
    epsilon_fraction: float = 0.1
    """Part of total_env_steps in which epsilon falls (linear); 0: epsilon_final at once."""
    ape_x_epsilon: float = 0.4
    """Epsilon of the first environment, the most exploring one (ape-x)."""
    ape_x_alpha: float = 7.0
    """How much less the last environment explores, as an exponent (ape-x)."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_positive(
            learning_rate=self.learning_rate,
            adam_eps=self.adam_eps,
            target_update_interval=self.target_update_interval,
            tau=self.tau,
        )
        require_fraction(
            tau=self.tau,
            epsilon_initial=self.epsilon_initial,
            epsilon_final=self.epsilon_final,
            epsilon_fraction=self.epsilon_fraction,
            ape_x_epsilon=self.ape_x_epsilon,
        )
        require_not_negative(max_grad_norm=self.max_grad_norm, ape_x_alpha=self.ape_x_alpha)
        if self.huber_threshold is not None:
            require_positive(huber_threshold=self.huber_threshold)
        for size in self.head_hidden_sizes:
            require_positive(head_hidden_sizes=size)
        if self.epsilon_final > self.epsilon_initial:
            raise ConfigError(
                f"epsilon_final={self.epsilon_final} is above epsilon_initial="
                f"{self.epsilon_initial}: exploration would grow. Exchange them."
            )
