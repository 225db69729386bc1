"""Hyperparameters of SAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redline.algos.configs.checks import (
    require_finite,
    require_fraction,
    require_not_negative,
    require_positive,
)
from redline.algos.configs.off_policy import OffPolicyConfig
from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Hyperparameters of SAC; symbols as in Haarnoja et al. 2018, arXiv:1812.05905.

    REDQ (Chen et al. 2021, arXiv:2101.05982) is num_critics=10, critic_subset=2 and twenty
    updates per sample, the actor's once per twenty: replay_ratio=20 * batch_size,
    actor_update_interval=20. DroQ (Hiraoka et al. 2022, arXiv:2110.02034) is num_critics=2,
    critic_dropout=0.01, critic_layer_norm=True with the same two.

    Raises:
        ConfigError: if a value is out of range.
    """

    alpha: float | None = None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float = 1.0
    """Where the learned temperature starts."""
    target_entropy: float | None = None
    """Entropy in nats that the learned temperature steers to.
    None: -dim(A) for Box actions, target_entropy_scale * log |A| for Discrete ones."""
    target_entropy_scale: float = 0.98
    """Share of the largest entropy, log |A|, that Discrete actions are steered to."""
    tau: float = 0.005
    """Share of the way that the target critics move towards the critics."""
    target_update_interval: int = 1
    """Updates per step of the target critics."""
    actor_update_interval: int = 1
    """Updates of the critics per update of the actor and the temperature."""
    num_critics: int = 2
    """E, critics in the ensemble."""
    critic_subset: int | None = None
    """M, critics drawn anew at each update whose minimum makes the target; the actor then
    follows the mean of all. None: the minimum of all for both."""
    critic_layer_norm: bool = False
    """Whether the critics have layer normalisation before each activation."""
    critic_dropout: float = 0.0
    """Share of the critics' hidden outputs that is dropped."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate, and in proportion the three below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None = None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None = None
    """Adam's step size for the critics. None: learning_rate."""
    alpha_learning_rate: float | None = None
    """Adam's step size for the temperature. None: learning_rate."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_positive(
            initial_alpha=self.initial_alpha,
            target_entropy_scale=self.target_entropy_scale,
            tau=self.tau,
            target_update_interval=self.target_update_interval,
            actor_update_interval=self.actor_update_interval,
            num_critics=self.num_critics,
            learning_rate=self.learning_rate,
        )
        require_fraction(
            tau=self.tau,
            target_entropy_scale=self.target_entropy_scale,
            critic_dropout=self.critic_dropout,
        )
        if self.critic_dropout == 1.0:
            raise ConfigError("critic_dropout=1.0 drops everything. Give less, such as 0.01.")
        if self.target_entropy is not None:
            require_finite(target_entropy=self.target_entropy)
        if self.alpha is not None:
            require_not_negative(alpha=self.alpha)
        for name in ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})
        if self.critic_subset is not None and not 1 <= self.critic_subset <= self.num_critics:
            raise ConfigError(
                f"critic_subset={self.critic_subset} critics cannot be drawn from num_critics="
                f"{self.num_critics}. Give 1 to {self.num_critics}, or None for all."
            )
