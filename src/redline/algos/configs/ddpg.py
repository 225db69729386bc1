"""Hyperparameters of DDPG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import require_fraction, require_not_negative, require_positive
from redline.algos.configs.off_policy import OffPolicyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPGConfig(OffPolicyConfig):
    """Hyperparameters of DDPG; symbols as in Lillicrap et al. 2016, arXiv:1509.02971.

    Raises:
        ConfigError: if a value is out of range.
    """

    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions while collecting, in units of half the
    distance between the bounds."""
    tau: float = 0.005
    """Share of the way that the target networks move towards the online ones."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate, and in proportion the two below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None = None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None = None
    """Adam's step size for the critic. None: learning_rate."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_positive(tau=self.tau, learning_rate=self.learning_rate)
        require_fraction(tau=self.tau)
        require_not_negative(exploration_noise=self.exploration_noise)
        for name in ("actor_learning_rate", "critic_learning_rate"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})
