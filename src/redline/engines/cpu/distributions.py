"""Action distributions in numpy: log-density, entropy and their gradients, each written once.

With what the loss asks of row n, g = dL/d log pi(a) and h = dL/dH:

    Categorical, p = softmax(z):  dL/dz = g (1[a] - p) - h p (log p + H)
    Gaussian, e = (a - mean) / std:  dL/dmean = g e / std,
        dL/dlog_std = sum over rows of g (e^2 - 1) + h
    Squashed Gaussian, a = tanh(u), u = mean + std * noise:
        log pi(a) = sum(-noise^2 / 2 - log std - log(2 pi) / 2 - log(1 - a^2))
"""

from __future__ import annotations

import math

import numpy as np

from redline.data import Array

_HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2.0 * math.pi))
_TWO_LOG_TWO = np.float32(2.0 * math.log(2.0))
_TWO, _HALF = np.float32(2.0), np.float32(0.5)
_sum = np.add.reduce  # as `np.sum`, without its detour through Python


def gaussian_log_prob(z: Array, log_std: Array) -> Array:
    """[N] log-density of actions.

    Args:
        z: [N, k] (action - mean) / std.
        log_std: [k].
    """
    log_prob = _sum(np.square(z), 1)
    log_prob *= -_HALF
    log_prob -= _sum(log_std + _HALF_LOG_TWO_PI)
    return log_prob


def log_softmax(logits: Array) -> Array:
    """[N, A] log-probabilities."""
    log_p = logits - logits.max(1, keepdims=True)
    log_p -= np.log(_sum(np.exp(log_p), 1, keepdims=True))
    return log_p


def squashed_log_prob(noise: Array, log_std: Array, u: Array) -> Array:
    """[N] log-density of tanh(u) in [-1, 1]^k, with u = mean + std * noise.

    Uses log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))), exact to rounding.

    Args:
        noise: [N, k] standard normal.
        log_std: [N, k].
        u: [N, k], overwritten.
    """
    np.abs(u, out=u)
    terms = np.exp(-_TWO * u)
    np.log1p(terms, out=terms)
    terms += u
    terms *= _TWO
    terms -= log_std
    square = noise * noise
    square *= _HALF
    terms -= square
    size = u.shape[1]
    # A product with ones is quicker than the sum of few columns.
    log_prob = terms.dot(np.ones(size, np.float32))
    log_prob -= np.float32(size) * (_HALF_LOG_TWO_PI + _TWO_LOG_TWO)
    return log_prob


class GaussianDistribution:
    """Independent components with one standard deviation each, the same for all rows.

    Args:
        log_std: [k] parameter, read where it lies.
        grad: [k] its gradient, written by `gradient`.
    """

    def __init__(self, log_std: Array, grad: Array) -> None:
        self._log_std, self._grad = log_std, grad

    def evaluate(self, mean: Array, action: Array) -> tuple[Array, Array]:
        """[N] log-density of actions [N, ...] and entropy, given means [N, k]."""
        self._inverse = np.exp(-self._log_std)
        self._z = (action.reshape(mean.shape) - mean) * self._inverse
        log_prob = gaussian_log_prob(self._z, self._log_std)
        entropy = _sum(self._log_std + (_HALF_LOG_TWO_PI + _HALF))
        return log_prob, np.full(len(mean), entropy, np.float32)

    def gradient(self, log_prob: Array, entropy: Array) -> Array:
        """[N, k] with respect to the means, given those [N] of the two quantities."""
        weighted = self._z * log_prob[:, None]
        _sum(weighted * self._z, 0, out=self._grad)
        self._grad += _sum(entropy) - _sum(log_prob)
        weighted *= self._inverse
        return weighted


class CategoricalDistribution:
    """One choice of several."""

    def evaluate(self, logits: Array, action: Array) -> tuple[Array, Array]:
        """[N] log-probability of actions [N] and entropy, given logits [N, A]."""
        log_p = log_softmax(logits)
        p = np.exp(log_p)
        rows = np.arange(len(action))
        entropy = -_sum(p * log_p, 1)
        self._tape = p, log_p, entropy, rows, action
        return log_p[rows, action], entropy

    def gradient(self, log_prob: Array, entropy: Array) -> Array:
        """[N, A] with respect to the logits, given those [N] of the two quantities."""
        p, log_p, own, rows, action = self._tape
        grad = -log_prob[:, None] * p
        grad -= entropy[:, None] * p * (log_p + own[:, None])
        grad[rows, action] += log_prob
        return grad
