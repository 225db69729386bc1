"""Hyperparameters of R2D1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import require_fraction, require_not_negative, require_positive
from redline.algos.configs.q_learning import QLearningConfig
from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D1Config(QLearningConfig):
    """Hyperparameters of R2D1, whose defaults follow R2D2 (Kapturowski et al. 2019).

    Raises:
        ConfigError: if a value is out of range, or two contradict each other.
    """

    num_envs: int = 16
    """B, environments stepped in parallel."""
    rollout_length: int = 40
    """T, env_steps per environment per iteration; a divisor of state_interval."""
    batch_size: int = 32
    """Sequences per update."""
    gamma: float = 0.997
    """Discount per env_step, in [0, 1]."""
    n_step: int = 5
    """Rewards summed before bootstrapping."""
    replay_ratio: float = 1.0
    """Learned rows consumed by updates per env_step collected: updates per iteration =
    replay_ratio * T * B / (batch_size * sequence_length). What is left over is carried on."""
    prioritized: bool = True
    """Whether sequences are drawn by their priority."""
    priority_alpha: float = 0.9
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float = 0.6
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    priority_eta: float = 0.9
    """Priority of a sequence = eta * greatest + (1 - eta) * mean TD error of its rows."""
    sequence_length: int = 80
    """Rows of a sequence that are learned from."""
    burn_in: int = 40
    """Rows before those, which only warm the recurrent state up."""
    state_interval: int = 40
    """Rows from one sequence's start to the next one's, where the state is stored; a multiple
    of rollout_length."""
    value_rescaling: bool = True
    """Whether Q is learned of h(return), h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which
    takes the place of clipped rewards."""
    double_q: bool = True
    """Whether the online network chooses the action that the target network values
    (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Whether Q is a state value plus advantages less their mean over actions
    (Wang et al. 2016)."""
    huber_threshold: float | None = None
    """TD errors beyond it count linearly. None: squared error."""
    adam_eps: float = 1e-3
    """Adam's epsilon."""
    max_grad_norm: float = 40.0
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_update_interval: int = 2_500
    """Optimiser steps between updates of the target network."""
    epsilon_schedule: Literal["linear", "ape-x"] = "ape-x"
    """linear: one epsilon for all environments, falling with global env_steps.
    ape-x: a constant one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""

    def __post_init__(self) -> None:
        QLearningConfig.__post_init__(self)
        require_positive(sequence_length=self.sequence_length, state_interval=self.state_interval)
        require_not_negative(burn_in=self.burn_in)
        require_fraction(priority_eta=self.priority_eta)
        if self.state_interval % self.rollout_length:
            raise ConfigError(
                f"state_interval={self.state_interval} is no multiple of rollout_length="
                f"{self.rollout_length}, and a rollout carries the recurrent state of its first "
                f"row only. Use {self.rollout_length} or a multiple."
            )
        needed = (self.burn_in + self.sequence_length + self.n_step) * self.num_envs
        if self.replay_size < needed:
            raise ConfigError(
                f"replay_size={self.replay_size} holds no whole sequence: (burn_in + "
                f"sequence_length + n_step) * num_envs = {needed}. Use a larger replay."
            )

    @property
    def samples_per_update(self) -> int:
        """Learned rows that one update consumes, of which the replay ratio speaks."""
        return self.batch_size * self.sequence_length
