"""Hyperparameters of APPO-style PPO."""

from __future__ import annotations

from dataclasses import dataclass

from redline.algos.configs.checks import require_importance_bounds
from redline.algos.configs.ppo import PPOConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class APPOConfig(PPOConfig):
    """Hyperparameters of PPO with V-trace, Espeholt et al. 2018, arXiv:1802.01561.

    `gae_lambda` is the lambda of V-trace (the paper's remark 2).

    Raises:
        ConfigError: if a value is out of range, or a rollout does not split into equal
            minibatches.
    """

    rho_bar: float = 1.0
    """Largest importance ratio in the temporal difference and the advantage."""
    c_bar: float = 1.0
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""

    def __post_init__(self) -> None:
        PPOConfig.__post_init__(self)
        require_importance_bounds(self.rho_bar, self.c_bar)
