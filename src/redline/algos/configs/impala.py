"""Hyperparameters of IMPALA-style A2C."""

from __future__ import annotations

from dataclasses import dataclass

from redline.algos.configs.a2c import A2CConfig
from redline.algos.configs.checks import require_importance_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig(A2CConfig):
    """Hyperparameters of A2C with V-trace, Espeholt et al. 2018, arXiv:1802.01561.

    `gae_lambda` is the lambda of V-trace (the paper's remark 2).

    Raises:
        ConfigError: if a value is out of range.
    """

    rollout_length: int = 20
    """T, env_steps per environment per iteration; one optimiser step each."""
    rho_bar: float = 1.0
    """Largest importance ratio in the temporal difference and the policy gradient."""
    c_bar: float = 1.0
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""

    def __post_init__(self) -> None:
        A2CConfig.__post_init__(self)
        require_importance_bounds(self.rho_bar, self.c_bar)
