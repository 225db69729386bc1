"""`DerivedBoxActor` in numpy and C, for perceptrons on a CPU; the formulas are there."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from redline.data import Array
from redline.engines.cpu.array_networks import ArrayActor, ArrayCritic, Inputs, as_metrics
from redline.engines.cpu.networks import DerivedActor, DerivedCritic

_ONE = np.float32(1.0)


class ArrayBoxActor:
    """`step` in place of that of `DerivedBoxActor`, for batches of one size.

    Args:
        algorithm: owns parameters, optimisers and counts.
        actors: of `algorithm.policy` and of `algorithm.target_policy`.
        critics: of `algorithm.critic` and of `algorithm.target`.
        rows: N.
    """

    def __init__(
        self,
        algorithm: Any,
        actors: tuple[DerivedActor, DerivedActor],
        critics: tuple[DerivedCritic, DerivedCritic],
        rows: int,
    ) -> None:
        self._algorithm, self._networks = algorithm, (*actors, critics[1])
        self._size = algorithm.policy.action_size
        self._inputs = Inputs(algorithm.policy, actors[0], critics[0], rows)
        self._critic, self._actor = ArrayCritic(critics[0], rows), ArrayActor(actors[0], rows)
        room = self._critic.room
        self._target_actor = ArrayActor(actors[1], rows, room)
        self._target = ArrayCritic(critics[1], rows, room)
        self._share = np.full((1, rows), -1.0 / rows, np.float32)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def step(
        self, batch: Any, noise: Tensor | None, actor_learns: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As `DerivedBoxActor.step`."""
        algorithm, inputs = self._algorithm, self._inputs
        actor, target_actor, target_critic = self._networks
        inputs.take(batch["next_obs"], target_critic)
        x = inputs.of_actor(batch["next_obs"], target_actor)
        np.tanh(self._target_actor.forward(x), out=inputs.action)
        if noise is not None:
            self._smooth(noise.numpy())
        value = np.minimum.reduce(self._target.values(inputs.both), 0)
        metrics = self._critic.learn(batch, inputs, value, algorithm.critic_optimizer)
        actor_metrics: dict[str, Tensor] = {}
        if actor_learns:
            actor_metrics = self._learn_actor(inputs.of_actor(batch["obs"], actor))
            algorithm.move_targets()
        return metrics, actor_metrics

    def _smooth(self, noise: Array) -> None:
        """As `td3.smoothed`, of the actions among the inputs."""
        config, action = self._algorithm.config, self._inputs.action
        scaled = noise * np.float32(config.target_noise)
        clip = np.float32(config.target_noise_clip)
        np.maximum(scaled, -clip, out=scaled)
        np.minimum(scaled, clip, out=scaled)
        scaled += action
        np.maximum(scaled, -_ONE, out=scaled)
        np.minimum(scaled, _ONE, out=action)

    def _learn_actor(self, x: Array) -> dict[str, Tensor]:
        """One step of the actor by the first critic."""
        action = self._inputs.action
        np.tanh(self._actor.forward(x), out=action)
        value = self._critic.values(self._inputs.both, slice(0, 1))
        grad = self._critic.action_gradient(self._share, self._size)
        slope = action * action
        slope *= grad
        grad -= slope
        self._actor.learn(grad, self._algorithm.actor_optimizer)
        return as_metrics(actor_loss=-np.add.reduce(value, None) / np.float32(len(grad)))
