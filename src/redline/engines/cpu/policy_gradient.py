"""The step of A2C, IMPALA-style A2C and REINFORCE with hand-derived gradients.

The losses are in `algos/policy_gradient.py`. With row weights w (1 / rows where valid, else 0), A
the advantage and y the value target:

    dL/d log pi = -w A,    dL/dV = c_v w (V - y),    dL/dH = -c_e w
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from redline.algos.a2c import PolicyGradient
from redline.algos.algorithm import explained_variance, normalized
from redline.data import Rollout, map_leaves
from redline.engines.cpu.actor_critic import DerivedActorCritic
from redline.engines.cpu.array_actor_critic import ArrayActorCritic
from redline.engines.cpu.own_step import OwnStep
from redline.policies.policy import ActionEvaluation


class DerivedPolicyGradient(OwnStep):
    """`step` in place of that of `PolicyGradient`.

    Args:
        algorithm: owns parameters, optimiser and counts.
        networks: of its policy.
    """

    def __init__(self, algorithm: PolicyGradient, networks: DerivedActorCritic) -> None:
        self.algorithm, self._networks = algorithm, networks
        rows = algorithm.config.num_envs * algorithm.config.rollout_length
        suits = not torch.compiler.is_compiling() and ArrayActorCritic.suits(networks, rows)
        self._arrays = ArrayActorCritic(networks) if suits else None

    @classmethod
    def of(cls, algorithm: PolicyGradient) -> DerivedPolicyGradient | None:
        """None if the policy is not plain."""
        networks = DerivedActorCritic.of(algorithm.policy, algorithm.optimizer.parameters)
        return None if networks is None else cls(algorithm, networks)

    def step(self, rollout: Rollout) -> dict[str, Tensor]:
        """As `PolicyGradient.step`."""
        algorithm, config, valid = self.algorithm, self.algorithm.config, rollout["valid"]
        obs = map_leaves(lambda leaf: leaf.flatten(0, 1), rollout["obs"])
        found = self._forward(self._networks.inputs(obs), rollout["action"].flatten(0, 1))
        log_prob, entropy, value = (each.view(valid.shape) for each in found)
        output = ActionEvaluation(log_prob, entropy, value, {})
        advantage, target, metrics = algorithm.estimate(rollout, output)
        variance = explained_variance(value, target, valid)
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        weight = valid.to(value.dtype)
        weight /= weight.sum().clamp(min=1.0)
        # What comes of rewards and values in idle rows must not reach a sum, not even times 0.
        zero = torch.zeros_like(weight)
        log_prob_grad = torch.where(valid, -weight * advantage, zero)
        error = torch.where(valid, value - target, zero)
        self._backward(
            log_prob_grad, -config.entropy_coef * weight, (config.value_coef * weight) * error
        )
        norm = self._networks.gradients.clip(config.max_grad_norm)
        algorithm.optimizer.step(self._networks.gradients.views)
        return {
            "policy_loss": (log_prob_grad * torch.where(valid, log_prob, zero)).sum(),
            "value_loss": 0.5 * (weight * error.square()).sum(),
            "entropy": (weight * torch.where(valid, entropy, zero)).sum(),
            "grad_norm": norm,
            "explained_variance": variance,
            **metrics,
        }

    def _forward(self, inputs: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """[N] log pi(a), entropy and value of N rows."""
        if self._arrays is None:
            self._kept = self._networks.forward(inputs, action)
            return self._kept[:3]
        with np.errstate(all="ignore"):  # a loss that diverges is reported as such, not by numpy
            found = self._arrays.forward(inputs.numpy(), action.numpy())
        return tuple(torch.from_numpy(each) for each in found)

    def _backward(self, *gradients: Tensor) -> None:
        """Write all gradients, given those [T, B] with respect to what `_forward` gave."""
        rows = [each.flatten() for each in gradients]
        if self._arrays is None:
            self._networks.backward(self._kept, *rows)
            del self._kept
            return
        with np.errstate(all="ignore"):
            self._arrays.backward(*(each.numpy() for each in rows))
