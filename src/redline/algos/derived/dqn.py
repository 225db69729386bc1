"""DQN's update with hand-derived gradients; the loss is in `algos/dqn.py`.

With e = y - Q(s, a) of N rows, importance weights w and the Huber threshold k:

    dL/dQ(s, a) = -w * clip(e, -k, k) / N,   and 0 for the other actions
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redline.algos.dqn import DQN, Fractions
from redline.algos.q_learning import huber_loss
from redline.models.mlp_gradients import Gradients, Perceptron, perceptron_of
from redline.models.q_heads import ScalarHead
from redline.policies.q_policy import QPolicy
from redline.policies.torso_parts import is_fixed, split_torso


class DerivedDQN:
    """`step` in place of that of `DQN`.

    Args:
        algorithm: owns parameters, optimiser and counts.
        online: the network that learns.
        target: the target network.
        gradients: of the online one.
    """

    def __init__(
        self, algorithm: DQN, online: Perceptron, target: Perceptron, gradients: Gradients
    ) -> None:
        self.algorithm = algorithm
        self._encode, _ = split_torso(algorithm.policy.torso)
        self._online, self._target, self._gradients = online, target, gradients

    @classmethod
    def of(cls, algorithm: DQN) -> DerivedDQN | None:
        """None unless the values are scalars of one plain stream, without a mask."""
        gradients = Gradients(algorithm.optimizer.parameters)
        online = _perceptron(algorithm.policy, gradients)
        target = _perceptron(algorithm.target_policy, None)
        if online is None or target is None:
            return None
        return cls(algorithm, online, target, gradients)

    def step(self, batch: Any, drawn: Fractions, moves: bool) -> dict[str, Tensor]:
        """As `DQN.step`."""
        algorithm, config = self.algorithm, self.algorithm.config
        target = self._values_to_learn(batch)
        kept = self._online.forward(self._encode(batch["obs"]))
        action = batch["action"].unsqueeze(1)
        chosen = kept[-1].gather(1, action).squeeze(1)
        error, weight = target - chosen, batch["weight"]
        limit = config.huber_threshold
        slope = error if limit is None else error.clamp(-limit, limit)
        share = -1.0 / len(error)
        grad = torch.zeros_like(kept[-1]).scatter_(1, action, (share * weight * slope)[:, None])
        self._online.backward(kept, grad, columns=None)
        norm = self._gradients.clip(config.max_grad_norm)
        algorithm.optimizer.step(self._gradients.views)
        if moves:
            algorithm.target_network.move()
        priority = error.abs()
        algorithm.note_priority(priority)
        return {
            "loss": (weight * huber_loss(error, limit)).mean(),
            "q_mean": chosen.mean(),
            "target_mean": target.mean(),
            "grad_norm": norm,
            "priority": priority,
        }

    def _values_to_learn(self, batch: Any) -> Tensor:
        """[N] R + D * Q'(s', a*)."""
        following = self._encode(batch["next_obs"])
        values = self._target.forward(following)[-1]
        if self.algorithm.config.double_q:
            best = self._online.forward(following)[-1].argmax(1, keepdim=True)
            value = values.gather(1, best).squeeze(1)
        else:
            value = values.amax(1)
        return torch.addcmul(batch["reward"], batch["discount"], value)


def _perceptron(policy: QPolicy, gradients: Gradients | None) -> Perceptron | None:
    head = policy.head
    encoder, body = split_torso(policy.torso)
    plain = type(head) is ScalarHead and head.state_value is None and not head.is_noisy
    if not plain or policy.has_mask or policy.core is not None or not is_fixed(encoder):
        return None
    # Between the layers of its stream a head has ReLU, which is no module of its own there.
    if len(head.advantage.layers) > 1:
        return None
    return perceptron_of([*body, *head.advantage.layers], gradients)
