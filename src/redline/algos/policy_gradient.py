"""What A2C, IMPALA-style A2C and REINFORCE share: one optimiser step from each rollout.

Reads top to bottom: `policy_gradient_loss`, then `PolicyGradient.step`. How good the actions
were, and what the values should have been, is the algorithm's own: `estimate`.

| symbol | shape | meaning |
|---|---|---|
| A | [T, B] | advantage from `estimate` |
| y | [T, B] | value target from `estimate` |

Cost: one optimiser step per rollout. `update` never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from redline.algos.algorithm import clip_gradients, explained_variance, normalized
from redline.algos.configs import A2CConfig, ReinforceConfig
from redline.algos.optimizers import Optimizer
from redline.data import Rollout, masked_mean
from redline.policies.policy import ActionEvaluation, Policy


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


class PolicyGradient:
    """An actor-critic that takes one step from a rollout.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
    """

    config: A2CConfig | ReinforceConfig

    def __init__(self, policy: Policy, config: A2CConfig | ReinforceConfig) -> None:
        self.policy = policy
        self.config = config
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = self._make_optimizer()
        self._steps_taken = 0

    def _make_optimizer(self) -> Optimizer:
        raise NotImplementedError

    def estimate(
        self, rollout: Rollout, output: ActionEvaluation
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Advantages and value targets, constants [T, B], and further metrics [].

        Args:
            rollout: [T, B].
            output: what `policy.evaluate_rollout` gives for it now.
        """
        raise NotImplementedError

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedule."""
        self.optimizer.set_learning_rate(values.get("learning_rate", self.config.learning_rate))

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
        output = self.policy.evaluate_rollout(rollout)
        advantage, target, metrics = self.estimate(rollout, output)
        variance = explained_variance(output.value.detach(), target, valid)
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        policy_loss = policy_gradient_loss(output.log_prob, advantage, valid)
        critic_loss = 0.5 * masked_mean((output.value - target).square(), valid)
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * critic_loss - config.entropy_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
            "grad_norm": grad_norm,
            "explained_variance": variance,
            **metrics,
        }

    def optimizer_steps(self) -> int:
        """Optimiser steps taken."""
        return self._steps_taken

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimiser state and the count of steps."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_steps": self._steps_taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._steps_taken = state["optimizer_steps"]
