"""Hyperparameters of every algorithm. Imports no torch: `--help` must answer at once."""

from typing import TypeAlias

from redline.algos.configs.a2c import A2CConfig
from redline.algos.configs.appo import APPOConfig
from redline.algos.configs.ddpg import DDPGConfig
from redline.algos.configs.diayn import DIAYNConfig
from redline.algos.configs.dqn import DQNConfig
from redline.algos.configs.impala import ImpalaConfig
from redline.algos.configs.off_policy import OffPolicyConfig
from redline.algos.configs.ppo import PPOConfig
from redline.algos.configs.r2d1 import R2D1Config
from redline.algos.configs.reinforce import ReinforceConfig
from redline.algos.configs.sac import SACConfig
from redline.algos.configs.td3 import TD3Config

OnPolicyConfig: TypeAlias = PPOConfig | A2CConfig | ReinforceConfig
AlgorithmConfig: TypeAlias = OnPolicyConfig | OffPolicyConfig

CONFIGS: dict[str, type[AlgorithmConfig]] = {
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "reinforce": ReinforceConfig,
    "impala": ImpalaConfig,
    "appo": APPOConfig,
    "dqn": DQNConfig,
    "r2d1": R2D1Config,
    "ddpg": DDPGConfig,
    "td3": TD3Config,
    "sac": SACConfig,
    "diayn": DIAYNConfig,
}

__all__ = [
    "CONFIGS",
    "A2CConfig",
    "APPOConfig",
    "AlgorithmConfig",
    "DDPGConfig",
    "DIAYNConfig",
    "DQNConfig",
    "ImpalaConfig",
    "OffPolicyConfig",
    "OnPolicyConfig",
    "PPOConfig",
    "R2D1Config",
    "ReinforceConfig",
    "SACConfig",
    "TD3Config",
]
