"""The actor-critic of PPO, A2C, IMPALA and REINFORCE with hand-derived gradients.

With what the loss asks of row n, g = dL/d log pi(a), h = dL/dH and v = dL/dV:

    Categorical, p = softmax(z):  dL/dz = g (1[a] - p) - h p (log p + H)
    Gaussian, e = (a - mean) / std:  dL/dmean = g e / std,
        dL/dlog_std = sum over rows of g (e^2 - 1) + h
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redline.engines.cpu.mlp_gradients import Gradients, Perceptron, perceptron_of
from redline.engines.cpu.torso_parts import is_fixed, split_torso
from redline.policies.action_heads import CategoricalHead, GaussianHead
from redline.policies.actor_critic import ActorCritic

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Evaluated(NamedTuple):
    """What the networks say of N rows, and what backpropagation needs of it.

    Attributes:
        log_prob: [N] of the actions.
        entropy: [N].
        value: [N].
        tapes: of the two perceptrons.
        terms: of the distribution.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    tapes: tuple[list[Tensor], list[Tensor]]
    terms: tuple[Tensor, Tensor]


class DerivedActorCritic:
    """Two perceptrons, policy and value, and a distribution over simple actions.

    Args:
        policy: owns the parameters.
        actor: from encoded observations to the distribution's parameters.
        critic: from encoded observations to the value.
        gradients: of all parameters.
    """

    def __init__(
        self, policy: ActorCritic, actor: Perceptron, critic: Perceptron, gradients: Gradients
    ) -> None:
        self._policy, self.actor, self.critic = policy, actor, critic
        self.gradients = gradients
        self._encode, _ = split_torso(policy.torso)
        head: Any = policy.action_head
        self.log_std: Tensor | None = None
        if isinstance(head, GaussianHead):
            self.log_std = head.log_std.detach()  # type: ignore[union-attr]
            self.log_std_grad = gradients[head.log_std]  # type: ignore[index]

    @classmethod
    def of(cls, policy: Any, parameters: list[Tensor]) -> DerivedActorCritic | None:
        """None unless actor and critic are plain perceptrons that share nothing.

        Args:
            policy: what learns.
            parameters: of the policy, in the optimiser's order.
        """
        if type(policy) is not ActorCritic or policy.core is not None or policy.has_mask:
            return None
        head = policy.action_head
        gaussian = type(head) is GaussianHead and head.log_std is not None
        if not (gaussian or type(head) is CategoricalHead) or policy.critic_torso is None:
            return None
        (encoder, body), (own, critic_body) = map(split_torso, (policy.torso, policy.critic_torso))
        if not is_fixed(encoder) or not is_fixed(own):
            return None
        gradients = Gradients(parameters)
        actor = perceptron_of([*body, policy.policy_head], gradients)
        critic = perceptron_of([*critic_body, policy.value_head], gradients)
        if actor is None or critic is None:
            return None
        return cls(policy, actor, critic, gradients)

    def inputs(self, obs: Any) -> Tensor:
        """[N, F] normalised and encoded observations; once serves all passes over them."""
        normalizer = self._policy.normalizer
        return self._encode(obs if normalizer is None else normalizer(obs))

    def forward(self, inputs: Tensor, action: Tensor) -> Evaluated:
        """Evaluate actions [N, ...] at inputs [N, F]."""
        actor_tape, critic_tape = self.actor.forward(inputs), self.critic.forward(inputs)
        value, outputs = critic_tape[-1].squeeze(1), actor_tape[-1]
        if self.log_std is None:
            log_p = torch.log_softmax(outputs, 1)
            index = action.unsqueeze(1)
            entropy = -(log_p.exp() * log_p).sum(1)
            log_prob = log_p.gather(1, index).squeeze(1)
            terms = (log_p, index)
        else:
            inverse = torch.exp(-self.log_std)
            z = (action.reshape(outputs.shape) - outputs) * inverse
            constant = (self.log_std + _HALF_LOG_TWO_PI).sum()
            log_prob = -0.5 * z.square().sum(1) - constant
            entropy = (constant + 0.5 * outputs.shape[1]).expand(len(outputs))
            terms = (z, inverse)
        return Evaluated(log_prob, entropy, value, (actor_tape, critic_tape), terms)

    def backward(self, kept: Evaluated, log_prob: Tensor, entropy: Tensor, value: Tensor) -> None:
        """Write all gradients, given those [N] of the loss with respect to three quantities."""
        first, second = kept.terms
        if self.log_std is None:
            p = first.exp()
            grad = -log_prob.unsqueeze(1) * p
            grad -= entropy.unsqueeze(1) * p * (first + kept.entropy.unsqueeze(1))
            grad.scatter_add_(1, second, log_prob.unsqueeze(1))
        else:
            weighted = first * log_prob.unsqueeze(1)
            grad = weighted * second
            torch.sum(weighted * first, 0, out=self.log_std_grad)
            self.log_std_grad += entropy.sum() - log_prob.sum()
        self.actor.backward(kept.tapes[0], grad, columns=None)
        self.critic.backward(kept.tapes[1], value.unsqueeze(1), columns=None)
