"""`DerivedActorCritic` in numpy and C, for perceptrons on a CPU.

The formulas are those of `actor_critic` beside this file. Of some hundred rows an update is a
hundred short operations, whose calls through the tensor library cost several times their
arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from redline.data import Array
from redline.engines.cpu.actor_critic import DerivedActorCritic
from redline.engines.cpu.array_mlp import ArrayPerceptron, suits_arrays

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class ArrayActorCritic:
    """Two perceptrons, policy and value, and a distribution over simple actions.

    Args:
        networks: the same in tensors, on the CPU; parameters and gradients are used where they
            lie.
    """

    def __init__(self, networks: DerivedActorCritic) -> None:
        self._actor = ArrayPerceptron(networks.actor)
        self._critic = ArrayPerceptron(networks.critic)
        self._gradients = networks.gradients.flat.numpy()
        self._kind: _Gaussian | _Categorical = _Categorical()
        if networks.log_std is not None:
            self._kind = _Gaussian(networks.log_std, networks.log_std_grad)

    @staticmethod
    def suits(networks: DerivedActorCritic, rows: int) -> bool:
        """Whether this is the quicker way for so many rows."""
        return suits_arrays(networks.actor, rows) and suits_arrays(networks.critic, rows)

    def forward(self, x: Array, action: Array) -> tuple[Array, Array, Array]:
        """[N] log pi(a), entropy and value of actions [N, ...] at inputs [N, F]."""
        self._tapes = self._actor.forward(x), self._critic.forward(x)
        log_prob, entropy = self._kind.evaluate(self._tapes[0][-1], action)
        return log_prob, entropy, self._tapes[1][-1][:, 0]

    def backward(self, log_prob: Array, entropy: Array, value: Array) -> None:
        """Write all gradients, given those [N] of the loss with respect to what `forward` gave."""
        self._actor.backward(self._tapes[0], self._kind.gradient(log_prob, entropy))
        self._critic.backward(self._tapes[1], value[:, None])
        del self._tapes

    def clip(self, max_norm: float) -> Any:
        """Scale all gradients to an L2 norm of at most `max_norm` (0: leave them); that before."""
        norm = np.sqrt(self._gradients.dot(self._gradients))
        if max_norm > 0:
            scale = np.float32(max_norm) / (norm + np.float32(1e-6))
            if not scale >= 1.0:  # a norm that is not a number reaches the parameters, as elsewhere
                self._gradients *= scale
        return norm


class _Gaussian:
    """Of independent components, with one standard deviation each.

    Args:
        log_std: [k] parameter, read where it lies.
        grad: [k] its gradient, written by `gradient`.
    """

    def __init__(self, log_std: Tensor, grad: Tensor) -> None:
        self._log_std, self._grad = log_std.numpy(), grad.numpy()

    def evaluate(self, mean: Array, action: Array) -> tuple[Array, Array]:
        """[N] log-density of actions [N, ...] and entropy, given means [N, k]."""
        self._inverse = np.exp(-self._log_std)
        self._z = (action.reshape(mean.shape) - mean) * self._inverse
        constant = (self._log_std + np.float32(_HALF_LOG_TWO_PI)).sum()
        log_prob = np.square(self._z).sum(1)
        log_prob *= -0.5
        log_prob -= constant
        entropy = np.full(len(mean), constant + np.float32(0.5 * mean.shape[1]), np.float32)
        return log_prob, entropy

    def gradient(self, log_prob: Array, entropy: Array) -> Array:
        """[N, k] with respect to the means, given those [N] of the two quantities."""
        weighted = self._z * log_prob[:, None]
        self._grad[:] = (weighted * self._z).sum(0)
        self._grad += entropy.sum() - log_prob.sum()
        weighted *= self._inverse
        return weighted


class _Categorical:
    """Of one choice."""

    def evaluate(self, logits: Array, action: Array) -> tuple[Array, Array]:
        """[N] log-probability of actions [N] and entropy, given logits [N, A]."""
        log_p = logits - logits.max(1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
        p = np.exp(log_p)
        rows = np.arange(len(action))
        entropy = -(p * log_p).sum(1)
        self._parts = p, log_p, entropy, rows, action
        return log_p[rows, action], entropy

    def gradient(self, log_prob: Array, entropy: Array) -> Array:
        """[N, A] with respect to the logits, given those [N] of the two quantities."""
        p, log_p, own, rows, action = self._parts
        grad = -log_prob[:, None] * p
        grad -= entropy[:, None] * p * (log_p + own[:, None])
        grad[rows, action] += log_prob
        return grad
