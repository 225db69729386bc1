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
from redline.engines.cpu.array_mlp import suits_arrays
from redline.engines.cpu.dqn_arrays import ArrayDQN
from redline.engines.cpu.mlp_gradients import Gradients, Perceptron, perceptron_of
from redline.engines.cpu.own_step import OwnStep
from redline.engines.cpu.torso_parts import is_fixed, is_identity, split_torso
from redline.models.q_heads import ScalarHead
from redline.policies.q_policy import QPolicy


class DerivedDQN(OwnStep):
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
        encoder, _ = split_torso(algorithm.policy.torso)
        unchanged = is_identity(encoder, algorithm.policy.observation_space)
        self._encode: Any = _unchanged if unchanged else encoder
        self._online, self._target, self._gradients = online, target, gradients
        rows, self._arrays = algorithm.config.batch_size, None
        plain = not torch.compiler.is_compiling()
        if plain and suits_arrays(online, rows) and suits_arrays(target, rows):
            self._arrays = ArrayDQN(algorithm, online, target, gradients)

    @classmethod
    def of(cls, algorithm: DQN) -> DerivedDQN | None:
        """None unless the values are scalars of one plain stream, without a mask."""
        gradients = Gradients(algorithm.optimizer.parameters)
        online = _perceptron(algorithm.policy, gradients)
        target = _perceptron(algorithm.target_policy, None)
        if online is None or target is None:
            return None
        return cls(algorithm, online, target, gradients)

    def step(self, batch: Any, drawn: Fractions, moves: bool) -> dict[str, Any]:
        """As `DQN.step`."""
        algorithm = self.algorithm
        obs, next_obs = self._encode(batch["obs"]), self._encode(batch["next_obs"])
        parts = [batch[name] for name in ("action", "reward", "discount", "weight")]
        if self._arrays is not None and not torch.compiler.is_compiling():
            metrics = self._arrays.learn(obs, next_obs, *parts)
        else:
            metrics = self._learn(obs, next_obs, *parts)
            algorithm.note_priority(metrics["priority"])
        algorithm.optimizer.step(self._gradients.views)
        if moves:
            algorithm.target_network.move()
        return metrics

    def _learn(
        self,
        obs: Tensor,
        next_obs: Tensor,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        weight: Tensor,
    ) -> dict[str, Any]:
        """Write the gradients, clipped; what `step` returns."""
        values, online = self._target.forward(next_obs)[-1], self._online
        if self.algorithm.config.double_q:
            best = online.forward(next_obs)[-1].argmax(1, keepdim=True)
            value = values.gather(1, best).squeeze(1)
        else:
            value = values.amax(1)
        target = torch.addcmul(reward, discount, value)
        kept, index = online.forward(obs), action.unsqueeze(1)
        chosen = kept[-1].gather(1, index).squeeze(1)
        error = target - chosen
        limit = self.algorithm.config.huber_threshold
        slope = error if limit is None else error.clamp(-limit, limit)
        grad = torch.zeros_like(kept[-1])
        grad.scatter_(1, index, (-1.0 / len(error) * weight * slope)[:, None])
        online.backward(kept, grad, columns=None)
        loss = (weight * huber_loss(error, limit)).mean()
        return {
            "loss": loss,
            "q_mean": chosen.mean(),
            "target_mean": target.mean(),
            "grad_norm": self._gradients.clip(self.algorithm.config.max_grad_norm),
            "priority": error.abs(),
        }


def _unchanged(obs: Tensor) -> Tensor:
    """Observations of one vector are features already."""
    return obs


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
