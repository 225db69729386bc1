"""Hyperparameters of every algorithm. Imports no torch: `--help` must answer at once."""

from redline.algos.configs.a2c import A2CConfig
from redline.algos.configs.ppo import PPOConfig
from redline.algos.configs.reinforce import ReinforceConfig

CONFIGS: dict[str, type[PPOConfig] | type[A2CConfig] | type[ReinforceConfig]] = {
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "reinforce": ReinforceConfig,
}

__all__ = ["CONFIGS", "A2CConfig", "PPOConfig", "ReinforceConfig"]
