"""Hyperparameters of TD3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import require_fraction, require_not_negative, require_positive
from redline.algos.configs.off_policy import OffPolicyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3Config(OffPolicyConfig):
    """Hyperparameters of TD3; symbols as in Fujimoto et al. 2018, arXiv:1802.09477.

    Actions are measured in units of half the distance between their bounds: [-1, 1].

    Raises:
        ConfigError: if a value is out of range.
    """

    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions while collecting."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Bound of that noise, c."""
    policy_delay: int = 2
    """Updates of the critics per update of the actor and of all targets, d."""
    num_critics: int = 2
    """Critics in the ensemble, whose minimum makes the target; the actor follows the first."""
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
    """Adam's step size for the critics. None: learning_rate."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_positive(
            tau=self.tau,
            policy_delay=self.policy_delay,
            num_critics=self.num_critics,
            learning_rate=self.learning_rate,
        )
        require_fraction(tau=self.tau)
        require_not_negative(
            exploration_noise=self.exploration_noise,
            target_noise=self.target_noise,
            target_noise_clip=self.target_noise_clip,
        )
        for name in ("actor_learning_rate", "critic_learning_rate"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})
