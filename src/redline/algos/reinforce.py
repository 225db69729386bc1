"""REINFORCE with a learned baseline.

Williams 1992; Sutton and Barto 2018, section 13.4. Reads top to bottom: `ReinforceConfig`
in `algos/configs/reinforce.py`, then `Reinforce.update`; the loss is A2C's
`policy_gradient_loss`.

| symbol | shape | meaning |
|---|---|---|
| G | [T, B] | reward-to-go of a whole episode, from `returns.discounted_return` |
| A | [T, B] | G - V(s), the baseline subtracted |

Data: one episode per environment and iteration; an environment that has finished waits,
its rows not valid. Only an episode longer than T is cut, its tail estimated by V.

Departs from the book: the factor gamma^t is left out, as is customary, so that late steps
count as much as early ones; one optimiser step uses all episodes of the iteration.

Cost: one optimiser step per iteration. `update` never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redline.algos.a2c import policy_gradient_loss
from redline.algos.algorithm import (
    clip_gradients,
    explained_variance,
    load_optimizer_state,
    normalized,
    optimizer_state,
    set_learning_rate,
)
from redline.algos.configs import ReinforceConfig
from redline.data import Rollout, masked_mean
from redline.policies.policy import Policy
from redline.returns import discounted_return


class Reinforce:
    """REINFORCE on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, REINFORCE draws nothing; kept so that all algorithms are made alike.
    """

    def __init__(self, policy: Policy, config: ReinforceConfig, seed: int = 0) -> None:
        del seed
        self.policy = policy
        self.config = config
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self._parameters[0].device
        self._optimizer = torch.optim.Adam(
            self._parameters, lr=config.learning_rate, eps=config.adam_eps, fused=True
        )
        self._steps_taken = 0

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedule."""
        set_learning_rate(self._optimizer, values.get("learning_rate", self.config.learning_rate))

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Take one optimiser step from the episodes of one rollout.

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
        returns = discounted_return(
            rollout["reward"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            valid,
            gamma=config.gamma,
        )
        advantage = returns - rollout["value"]
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        output = self.policy.replay(rollout)
        policy_loss = policy_gradient_loss(output.log_prob, advantage, valid)
        baseline_loss = 0.5 * masked_mean((output.value - returns).square(), valid)
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * baseline_loss - config.entropy_coef * entropy
        self._optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self._parameters, config.max_grad_norm)
        self._optimizer.step()
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": baseline_loss.detach(),
            "entropy": entropy.detach(),
            "grad_norm": grad_norm,
            "explained_variance": explained_variance(rollout["value"], returns, valid),
        }

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
