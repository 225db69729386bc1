"""The updates of TD3 and DDPG with gradients derived by hand; losses are in their own files.

With a = tanh(z) and the first critic's value of it,

    L_actor = -mean(Q),   dL/dz = (1 - a^2) * dL/da,   dL/da = -dQ/da / N
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from redline.algos.ddpg import DDPG
from redline.algos.td3 import TD3
from redline.data import Array
from redline.engines.cpu.critics import ActorNetwork, CriticNetworks, Inputs, as_metrics
from redline.engines.cpu.known_parts import (
    known_actor,
    known_critic,
    require_optimizer,
    require_parameters,
)
from redline.engines.cpu.mlp import require_quick
from redline.engines.cpu.parameters import Gradients, OptimizerStep, TargetMove
from redline.policies.actors import DeterministicActor

_ONE = np.float32(1.0)


class TD3Update:
    """In place of `TD3.update`, and of `DDPG.update`, which is the same without noise and delay.

    Args:
        algorithm: owns parameters, optimizers, generator and counts, which are changed in place.


    Raises:
        NotServedError: if a part is not known.
    """

    def __init__(self, algorithm: TD3 | DDPG) -> None:
        online = {"policy": algorithm.policy, "critic": algorithm.critic}
        targets = {"target_policy": algorithm.target_policy, "target": algorithm.target}
        space = algorithm.policy.observation_space
        self._actor = known_actor(algorithm.policy, DeterministicActor)
        self._target_actor = known_actor(
            algorithm.target_policy, DeterministicActor, "target_policy"
        )
        self._critic = known_critic(algorithm.critic, space, "critic")
        self._target = known_critic(algorithm.target, space, "target")
        require_parameters(online)
        require_parameters(targets, trainable=False)
        require_optimizer(algorithm.actor_optimizer, [algorithm.policy], "actor_optimizer")
        require_optimizer(algorithm.critic_optimizer, [algorithm.critic], "critic_optimizer")
        chains = [self._actor.chain, *self._critic.members]
        require_quick(chains, algorithm.config.batch_size)
        self._algorithm: Any = algorithm
        self._size, self._is_td3 = algorithm.policy.action_size, type(algorithm) is TD3
        self._gradients = [
            Gradients(optimizer.parameters)
            for optimizer in (algorithm.actor_optimizer, algorithm.critic_optimizer)
        ]
        self._actor_step = OptimizerStep(algorithm.actor_optimizer, self._gradients[0].views)
        self._critic_step = OptimizerStep(algorithm.critic_optimizer, self._gradients[1].views)
        self._move_targets = TargetMove(targets.values(), online.values(), algorithm.config.tau)
        self._rows = 0

    def _take_memory(self, rows: int) -> None:
        """Memory for batches of so many rows."""
        self._rows = rows
        self._inputs = Inputs(self._actor, self._critic, self._size, rows)
        self._critics = CriticNetworks(self._critic, rows, self._gradients[1])
        self._actor_network = ActorNetwork(self._actor, rows, self._gradients[0])
        # Of the targets only the outputs are kept, so they use the critics' memory.
        share = self._critics.workspace
        self._target_network = ActorNetwork(self._target_actor, rows, share=share)
        self._targets = CriticNetworks(self._target, rows, share=share)
        self._share = np.full((1, rows), -1.0 / rows, np.float32)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """As `TD3.update` or `DDPG.update`."""
        algorithm, rows = self._algorithm, len(batch["reward"])
        if rows != self._rows:
            self._take_memory(rows)
        algorithm.updates += 1
        noise, actor_learns = None, True
        if self._is_td3:
            noise = algorithm.draw_noise(rows).numpy()
            actor_learns = algorithm.updates % algorithm.config.policy_delay == 0
        inputs = self._inputs
        inputs.take(batch["next_obs"], self._target)
        x = inputs.of_actor(batch["next_obs"], self._target_actor)
        np.tanh(self._target_network.forward(x), out=inputs.action)
        if noise is not None:
            self._smooth(noise)
        value = np.minimum.reduce(self._targets.values(inputs.both), 0)
        metrics = self._critics.learn(batch, inputs, value, self._critic_step)
        if actor_learns:
            x = inputs.of_actor(batch["obs"], self._actor)
            algorithm.actor_metrics = self._learn_actor(x)
            self._move_targets()
        return metrics | algorithm.actor_metrics

    def _smooth(self, noise: Array) -> None:
        """Add clipped noise to the actions among the inputs, as `td3.smoothed` does."""
        config, action = self._algorithm.config, self._inputs.action
        scaled = noise * np.float32(config.target_noise)
        clip = np.float32(config.target_noise_clip)
        # Two operations in place of `np.clip`, whose call takes longer than both.
        np.maximum(scaled, -clip, out=scaled)
        np.minimum(scaled, clip, out=scaled)
        scaled += action
        np.maximum(scaled, -_ONE, out=scaled)
        np.minimum(scaled, _ONE, out=action)

    def _learn_actor(self, x: Array) -> dict[str, Tensor]:
        """One step of the actor by the first critic."""
        action = self._inputs.action
        np.tanh(self._actor_network.forward(x), out=action)
        value = self._critics.values(self._inputs.both, slice(0, 1))
        grad = self._critics.action_gradient(self._share, self._size)
        slope = action * action
        slope *= grad
        grad -= slope
        self._actor_network.backward(grad)
        self._actor_step()
        return as_metrics(actor_loss=-np.add.reduce(value, None) / np.float32(len(grad)))
