"""The updates of DDPG and TD3 with hand-derived gradients; losses are in their own files.

With a = tanh(z) and the first critic's value of it,

    L_actor = -mean(Q),   dL/dz = (1 - a^2) * dL/da,   dL/da = -dQ/da / N
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redline.algos.critics import bootstrapped
from redline.algos.ddpg import DDPG
from redline.algos.td3 import TD3, smoothed
from redline.engines.cpu.array_networks import InArrays
from redline.engines.cpu.box_actor_arrays import ArrayBoxActor
from redline.engines.cpu.networks import DerivedActor, DerivedCritic
from redline.engines.cpu.own_step import OwnStep


class DerivedBoxActor(OwnStep):
    """`step` in place of that of `DDPG` and of `TD3`.

    Args:
        algorithm: owns parameters, optimisers and counts.
        actor: of `algorithm.policy`.
        critic: of `algorithm.critic`.
        target_actor: of `algorithm.target_policy`.
        target: of `algorithm.target`.
    """

    def __init__(
        self,
        algorithm: Any,
        actor: DerivedActor,
        critic: DerivedCritic,
        target_actor: DerivedActor,
        target: DerivedCritic,
    ) -> None:
        self.algorithm = algorithm
        self._actor, self._critic = actor, critic
        self._target_actor, self._target = target_actor, target
        self._size = algorithm.policy.action_size
        actors, critics = (actor, target_actor), (critic, target)
        self._arrays = InArrays(
            (*actors, *critics), lambda rows: ArrayBoxActor(algorithm, actors, critics, rows)
        )

    @classmethod
    def of(cls, algorithm: DDPG | TD3) -> Any:
        """None if a network is not plain."""
        actor = DerivedActor.of(algorithm.policy, algorithm.actor_optimizer)
        critic = DerivedCritic.of(algorithm.critic, algorithm.critic_optimizer)
        target_actor = DerivedActor.of(algorithm.target_policy)
        target = DerivedCritic.of(algorithm.target)
        if not (actor and critic and target_actor and target):
            return None
        return cls(algorithm, actor, critic, target_actor, target)

    def step(
        self, batch: Any, noise: Tensor | None, actor_learns: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As `TD3.step`; without noise it is that of `DDPG`."""
        arrays = self._arrays.step_for(len(batch["reward"]))
        if arrays is not None:
            return arrays.step(batch, noise, actor_learns)
        algorithm = self.algorithm
        following = batch["next_obs"]
        action = torch.tanh(self._output(self._target_actor, following)[-1])
        if noise is not None:
            config = algorithm.config
            action = smoothed(action, noise, config.target_noise, config.target_noise_clip)
        values = self._target.values(torch.cat([self._target.encode(following), action], 1))
        target = bootstrapped(batch["reward"], batch["discount"], torch.stack(values).amin(0))
        features = self._critic.encode(batch["obs"])
        loss, q_value, priority = self._critic.learn(
            torch.cat([features, batch["action"].flatten(1)], 1),
            target,
            batch["weight"],
            algorithm.critic_optimizer,
        )
        actor_metrics: dict[str, Tensor] = {}
        if actor_learns:
            actor_metrics["actor_loss"] = self._learn_actor(batch["obs"], features)
            algorithm.move_targets()
        return {"critic_loss": loss, "q_value": q_value, "priority": priority}, actor_metrics

    def _learn_actor(self, obs: Any, features: Tensor) -> Tensor:
        """One step of the actor by the first critic; its loss []."""
        algorithm, member = self.algorithm, self._critic.members[0]
        kept = self._output(self._actor, obs)
        action = torch.tanh(kept[-1])
        tape = member.forward(torch.cat([features, action], 1))
        value = tape[-1].squeeze(1)
        grad = self._critic.action_gradient(
            [member], [tape], [torch.full_like(value, -1.0 / len(value))], self._size
        )
        self._actor.perceptron.backward(
            kept, torch.ops.aten.tanh_backward(grad, action), columns=None
        )
        algorithm.actor_optimizer.step(self._actor.gradients)
        return -value.mean()

    def _output(self, actor: DerivedActor, obs: Any) -> list[Tensor]:
        return actor.perceptron.forward(actor.encoder(obs))
