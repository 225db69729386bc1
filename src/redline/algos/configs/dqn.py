"""Hyperparameters of the DQN family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import require_finite, require_positive
from redline.algos.configs.q_learning import QLearningConfig
from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(QLearningConfig):
    """Hyperparameters of DQN and of all that Rainbow (Hessel et al. 2018) adds to it.

    Raises:
        ConfigError: if a value is out of range, or two contradict each other.
    """

    batch_size: int = 32
    """Transitions per update."""
    rollout_length: int = 4
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    replay_ratio: float = 8.0
    """Samples consumed by updates per sample collected: updates per iteration =
    replay_ratio * T * B / batch_size. What is left over is carried on."""
    learning_starts: int = 10_000
    """env_steps collected before the first update."""
    noisy: bool = False
    """Whether the layers after the torso have noisy weights (Fortunato et al. 2018). They
    explore by themselves once learning has started: use a small epsilon_final, such as 0."""
    noisy_std: float = 0.5
    """Initial standard deviation of the noisy weights, times the square root of fan-in."""
    value_distribution: Literal["none", "categorical", "quantile", "implicit"] = "none"
    """What is learned of the return: its mean, C51's categorical distribution, QR-DQN's fixed
    quantiles, or IQN's implicit quantile function."""
    num_atoms: int = 51
    """Atoms of the categorical distribution."""
    v_min: float = -10.0
    """Value of its first atom: the least discounted return to tell apart."""
    v_max: float = 10.0
    """Value of its last atom: the greatest."""
    num_quantiles: int = 200
    """Quantiles of the quantile distribution."""
    num_fractions: int = 64
    """Fractions drawn for the predictions of the implicit distribution (N of IQN)."""
    num_target_fractions: int = 64
    """Fractions drawn for its targets (N')."""
    num_acting_fractions: int = 32
    """Evenly spaced fractions whose mean is the value that acts and is maximised (K)."""

    def __post_init__(self) -> None:
        QLearningConfig.__post_init__(self)
        require_positive(
            noisy_std=self.noisy_std,
            num_quantiles=self.num_quantiles,
            num_fractions=self.num_fractions,
            num_target_fractions=self.num_target_fractions,
            num_acting_fractions=self.num_acting_fractions,
        )
        if self.num_atoms < 2:
            raise ConfigError(
                f"num_atoms={self.num_atoms} is no distribution. Use at least 2; 51 is usual."
            )
        require_finite(v_min=self.v_min, v_max=self.v_max)
        if not self.v_min < self.v_max:
            raise ConfigError(
                f"v_min={self.v_min} is not below v_max={self.v_max}: the atoms span the "
                "discounted returns. Give the least and the greatest to tell apart."
            )
        if self.value_distribution in ("quantile", "implicit") and self.huber_threshold is None:
            raise ConfigError(
                f"huber_threshold=None is a squared error, and value_distribution="
                f"{self.value_distribution!r} needs the quantile Huber loss. Give a threshold, "
                "such as 1.0."
            )
