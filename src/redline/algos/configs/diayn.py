"""Hyperparameters of DIAYN."""

from __future__ import annotations

from dataclasses import dataclass

from redline.algos.configs.checks import require_positive
from redline.algos.configs.sac import SACConfig
from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DIAYNConfig(SACConfig):
    """Hyperparameters of DIAYN on SAC; Eysenbach et al. 2019, arXiv:1802.06070.

    Raises:
        ConfigError: if a value is out of range.
    """

    num_skills: int = 8
    """K, skills to tell apart."""
    skill_length: int = 200
    """env_steps per environment for which it keeps its skill, rounded up to whole rollouts."""
    alpha: float | None = 0.1
    """Temperature, the weight of the entropy. None: learned."""
    discriminator_learning_rate: float | None = None
    """Adam's step size for the discriminator. None: learning_rate."""

    def __post_init__(self) -> None:
        SACConfig.__post_init__(self)
        require_positive(num_skills=self.num_skills, skill_length=self.skill_length)
        if self.num_skills < 2:
            raise ConfigError("num_skills=1 leaves nothing to tell apart. Use at least 2.")
        if self.discriminator_learning_rate is not None:
            require_positive(discriminator_learning_rate=self.discriminator_learning_rate)
        if self.n_step != 1:
            raise ConfigError(
                f"n_step={self.n_step} sums rewards of the environment, which DIAYN does not see: "
                f"its own are of single transitions. Use n_step=1."
            )
