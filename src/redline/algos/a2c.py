"""Advantage actor-critic (A2C), the synchronous form of A3C.

Mnih et al. 2016, arXiv:1602.01783. Loss and update are those of `algos/policy_gradient.py`, the
estimates are `A2C.estimate`; hyperparameters are in `algos/configs/a2c.py`.

| symbol | shape | meaning |
|---|---|---|
| A | [T, B] | advantage from `returns.gae`; with lambda = 1 the paper's n-step return minus V |
| R | [T, B] | value target, A + V |

Departs from the paper: synchronous, one optimiser step per rollout; generalised advantage
estimation where lambda < 1.

Cost: one optimiser step per rollout. `update` never waits for the device.
"""

from __future__ import annotations

from torch import Tensor

from redline.algos.configs import A2CConfig
from redline.algos.optimizers import Adam, Optimizer, RMSprop
from redline.algos.policy_gradient import PolicyGradient
from redline.data import Rollout
from redline.policies.policy import ActionEvaluation, Policy
from redline.returns import gae


class A2C(PolicyGradient):
    """A2C on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, A2C draws nothing; kept so that all algorithms are made alike.
    """

    config: A2CConfig

    def __init__(self, policy: Policy, config: A2CConfig, seed: int = 0) -> None:
        del seed
        super().__init__(policy, config)

    def _make_optimizer(self) -> Optimizer:
        config = self.config
        if config.optimizer == "adam":
            return Adam(self.parameters, config.learning_rate, eps=config.optimizer_eps)
        return RMSprop(self.parameters, config.learning_rate, eps=config.optimizer_eps)

    def estimate(
        self, rollout: Rollout, output: ActionEvaluation
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """A and R of a rollout that the present weights collected, and no further metrics."""
        del output
        advantage, target = gae(
            rollout["reward"],
            rollout["value"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        return advantage, target, {}
