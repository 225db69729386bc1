"""`DerivedSAC` in numpy and C, for perceptrons on a CPU; the formulas are there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.sac import SAC, Draws
from redline.data import Array
from redline.engines.cpu.array_networks import ArrayActor, ArrayCritic, Inputs, as_metrics
from redline.engines.cpu.networks import DerivedActor, DerivedCritic

_TWO, _HALF = np.float32(2.0), np.float32(0.5)
_CONSTANT = np.float32(0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0))


class ArraySAC:
    """`step` in place of that of `DerivedSAC`, for batches of one size.

    Args:
        algorithm: owns parameters, optimisers and counts.
        actor: of `algorithm.policy`.
        critic: of `algorithm.critic`.
        target: of `algorithm.target`.
        rows: N.
    """

    def __init__(
        self,
        algorithm: SAC,
        actor: DerivedActor,
        critic: DerivedCritic,
        target: DerivedCritic,
        rows: int,
    ) -> None:
        self._algorithm, self._networks = algorithm, (actor, target)
        self._size = algorithm.policy.action_size
        self._lowest, self._highest = map(np.float32, algorithm.policy.log_std_range)
        self._inputs = Inputs(algorithm.policy, actor, critic, rows)
        self._actor, self._critic = ArrayActor(actor, rows), ArrayCritic(critic, rows)
        self._target = ArrayCritic(target, rows, self._critic.room)
        self._ones = np.ones(self._size, np.float32)
        self._grad = np.empty((rows, 2 * self._size), np.float32)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def step(
        self, batch: Any, drawn: Draws, moves: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As `SAC.step`."""
        algorithm, inputs = self._algorithm, self._inputs
        actor, target_critic = self._networks
        temperature = algorithm.alpha()
        alpha, noise = temperature.numpy()[()], [each.numpy() for each in drawn.noise]
        inputs.take(batch["next_obs"], target_critic)
        log_prob, *_ = self._sample(inputs.of_actor(batch["next_obs"], actor), noise[0])
        value = np.minimum.reduce(self._target.values(inputs.both), 0)
        log_prob *= alpha
        value -= log_prob
        metrics = self._critic.learn(batch, inputs, value, algorithm.critic_optimizer)
        actor_metrics: dict[str, Tensor] = {}
        if len(noise) > 1:
            x = inputs.of_actor(batch["obs"], actor)
            actor_metrics = self._learn_actor(x, noise[1], alpha)
        if moves:
            algorithm.move_target()
        return metrics | {"alpha": temperature}, actor_metrics

    def _sample(self, x: Array, noise: Array) -> tuple[Array, Array, Array]:
        """Put actions among the inputs; [N] their log-density.

        Returns:
            It, [N, k] std * noise, and [N, k] which log standard deviations are not cut off.
        """
        outputs = self._actor.forward(x)
        mean, raw = outputs[:, : self._size], outputs[:, self._size :]
        log_std = np.maximum(raw, self._lowest)
        np.minimum(log_std, self._highest, out=log_std)
        spread = np.exp(log_std)
        spread *= noise
        u = mean + spread
        np.tanh(u, out=self._inputs.action)
        # log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))), exact to rounding
        np.abs(u, out=u)
        tail = np.exp(-_TWO * u)
        np.log1p(tail, out=tail)
        tail += u
        tail *= _TWO
        is_free = raw == log_std
        tail -= log_std
        square = noise * noise
        square *= _HALF
        tail -= square
        log_prob = tail.dot(self._ones)
        log_prob -= _CONSTANT * np.float32(self._size)
        return log_prob, spread, is_free

    def _learn_actor(self, x: Array, noise: Array, alpha: Any) -> dict[str, Tensor]:
        """One step of the actor, and one of the temperature from the same actions."""
        algorithm, action, size = self._algorithm, self._inputs.action, self._size
        log_prob, spread, is_free = self._sample(x, noise)
        values = self._critic.values(self._inputs.both)
        value = np.minimum.reduce(values, 0)
        chosen = (values == value).astype(np.float32)
        share = np.float32(1.0 / len(value))
        chosen *= -share / np.add.reduce(chosen, 0)  # equal values share, as autograd does it
        grad = self._critic.action_gradient(chosen, size)
        slope = action * action
        slope *= grad
        grad -= slope
        grad += action * (_TWO * share * alpha)
        spread *= grad
        spread -= share * alpha
        spread *= is_free
        self._grad[:, :size], self._grad[:, size:] = grad, spread
        self._actor.learn(self._grad, algorithm.actor_optimizer)
        entropy = -np.add.reduce(log_prob) * share
        if algorithm.alpha_optimizer is not None:
            # d/d log_alpha of log_alpha * (mean(H) - target)
            target: Any = algorithm.target_entropy
            spare = np.array(entropy - np.float32(target))
            algorithm.alpha_optimizer.step([torch.from_numpy(spare)])
        loss = -(np.add.reduce(value) * share + alpha * entropy)
        return as_metrics(actor_loss=loss, entropy=entropy)
