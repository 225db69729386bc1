"""Advantage actor-critic (A2C), the synchronous form of A3C.

Mnih et al. 2016, arXiv:1602.01783. Reads top to bottom: `policy_gradient_loss`,
`A2C.update`; hyperparameters are in `algos/configs/a2c.py`.

| symbol | shape | meaning |
|---|---|---|
| A | [T, B] | advantage from `returns.gae`; with lambda = 1 the paper's n-step return minus V |
| R | [T, B] | value target, A + V |

Departs from the paper: synchronous, one optimiser step per rollout; generalised advantage
estimation where lambda < 1.

Cost: one optimiser step per rollout. `update` never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redline.algos.algorithm import (
    clip_gradients,
    explained_variance,
    load_optimizer_state,
    normalized,
    optimizer_state,
    set_learning_rate,
)
from redline.algos.configs import A2CConfig
from redline.data import Rollout, masked_mean
from redline.policies.policy import Policy, ReplayOutput
from redline.returns import gae


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """The score-function estimator, negated so that it is minimised.

    Sutton and Barto 2018, eq. 13.11:  loss = -mean(log pi(a|s) * A)

    Args:
        log_prob: [...] log pi(a|s), in nats; carries gradient.
        advantage: [...] A; a constant here.
        valid: [...] bool, the rows to average over.

    Returns:
        The loss [].
    """
    return -masked_mean(log_prob * advantage, valid)


class A2C:
    """A2C on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, A2C draws nothing; kept so that all algorithms are made alike.
    """

    def __init__(self, policy: Policy, config: A2CConfig, seed: int = 0) -> None:
        del seed
        self.policy = policy
        self.config = config
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self._parameters[0].device
        self._optimizer = self._make_optimizer()
        self._steps_taken = 0

    def _make_optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        if config.optimizer == "adam":
            return torch.optim.Adam(
                self._parameters, lr=config.learning_rate, eps=config.optimizer_eps, fused=True
            )
        return torch.optim.RMSprop(
            self._parameters, lr=config.learning_rate, alpha=0.99, eps=config.optimizer_eps
        )

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedule."""
        set_learning_rate(self._optimizer, values.get("learning_rate", self.config.learning_rate))

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Take one optimiser step from one rollout.

        Args:
            rollout: [T, B] with the extra `value`.

        Returns:
            name -> [] metrics.
        """
        self._steps_taken += 1
        return self.step(rollout)

    def step(self, rollout: Rollout) -> dict[str, Tensor]:
        """The update; nothing here depends on counts."""
        config, valid = self.config, rollout["valid"]
        output = self.policy.replay(rollout)
        advantage, target, metrics = self._estimate(rollout, output)
        variance = explained_variance(output.value.detach(), target, valid)
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        policy_loss = policy_gradient_loss(output.log_prob, advantage, valid)
        critic_loss = 0.5 * masked_mean((output.value - target).square(), valid)
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * critic_loss - config.entropy_coef * entropy
        self._optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self._parameters, config.max_grad_norm)
        self._optimizer.step()
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
            "grad_norm": grad_norm,
            "explained_variance": variance,
            **metrics,
        }

    def _estimate(
        self, rollout: Rollout, output: ReplayOutput
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

    def optimizer_steps(self) -> int:
        """Optimiser steps taken."""
        return self._steps_taken

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimiser state and the count of steps."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": optimizer_state(self._optimizer),
            "optimizer_steps": self._steps_taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        load_optimizer_state(self._optimizer, state["optimizer"])
        self._steps_taken = state["optimizer_steps"]
