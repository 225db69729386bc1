"""SAC's update for Box actions with gradients derived by hand; the losses are in `algos/sac.py`.

With a = tanh(u), u = mean + std * noise, N rows and one sample of actions:

    L_actor = mean(alpha log pi - V),   V = min over Q
    dL/du = 2 a alpha / N + (1 - a^2) * dL/da,   dL/da = -dV/da / N
    dL/dmean = dL/du,   dL/dlog_std = dL/du * std * noise - alpha / N

and no gradient where the log standard deviation is cut off. In each row only the smallest critic
receives a gradient; equal ones share it, as in autograd.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.sac import SAC
from redline.data import Array
from redline.engines.cpu.critics import ActorNetwork, CriticNetworks, Inputs, as_metrics
from redline.engines.cpu.distributions import squashed_log_prob
from redline.engines.cpu.known_parts import (
    NotServedError,
    known_actor,
    known_critic,
    require_optimizer,
    require_parameters,
)
from redline.engines.cpu.mlp import require_quick
from redline.engines.cpu.parameters import Gradients, OptimizerStep, TargetMove
from redline.policies.actors import SquashedGaussianActor

_TWO = np.float32(2.0)


class SACUpdate:
    """In place of `SAC.update`.

    Args:
        algorithm: owns parameters, optimizers, generator and counts, which are changed in place.


    Raises:
        NotServedError: if a part is not known.
    """

    def __init__(self, algorithm: SAC) -> None:
        policy, critic, target = algorithm.policy, algorithm.critic, algorithm.target
        if algorithm.config.critic_subset is not None:
            raise NotServedError("the target takes the minimum of a drawn subset of the critics")
        if algorithm.config.actor_follows_mean:
            raise NotServedError("the actor follows the mean of the critics")
        space = policy.observation_space
        self._actor = known_actor(policy, SquashedGaussianActor)
        self._critic = known_critic(critic, space, "critic")
        self._target = known_critic(target, space, "target")
        require_parameters({"policy": policy, "critic": critic})
        require_parameters({"target": target}, trainable=False)
        require_optimizer(algorithm.actor_optimizer, [policy], "actor_optimizer")
        require_optimizer(algorithm.critic_optimizer, [critic], "critic_optimizer")
        chains = [self._actor.chain, *self._critic.members]
        require_quick(chains, algorithm.config.batch_size)
        self._algorithm, self._size = algorithm, policy.action_size
        self._gradients = [
            Gradients(optimizer.parameters)
            for optimizer in (algorithm.actor_optimizer, algorithm.critic_optimizer)
        ]
        self._actor_step = OptimizerStep(algorithm.actor_optimizer, self._gradients[0].views)
        self._critic_step = OptimizerStep(algorithm.critic_optimizer, self._gradients[1].views)
        self._spare_entropy = torch.zeros(())
        self._alpha_step: OptimizerStep | None = None
        if algorithm.alpha_optimizer is not None:
            self._alpha_step = OptimizerStep(algorithm.alpha_optimizer, [self._spare_entropy])
        self._move_target = TargetMove([target], [critic], algorithm.config.tau)
        self._rows = 0

    def _take_memory(self, rows: int) -> None:
        """Memory for batches of so many rows."""
        self._rows = rows
        self._inputs = Inputs(self._actor, self._critic, self._size, rows)
        self._actor_network = ActorNetwork(self._actor, rows, self._gradients[0])
        self._critics = CriticNetworks(self._critic, rows, self._gradients[1])
        # Of the target only the values are kept, so it uses the critics' memory.
        self._targets = CriticNetworks(self._target, rows, share=self._critics.workspace)
        self._grad = np.empty((rows, 2 * self._size), np.float32)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """As `SAC.update`."""
        algorithm, inputs, rows = self._algorithm, self._inputs_for(batch), len(batch["reward"])
        config = algorithm.config
        algorithm.updates += 1
        actor_learns = algorithm.updates % config.actor_update_interval == 0
        noise = [algorithm.draw_noise(rows).numpy() for _ in range(1 + actor_learns)]
        temperature = algorithm.alpha()
        alpha = temperature.numpy()[()]
        inputs.take(batch["next_obs"], self._target)
        log_prob, *_ = self._sample(inputs.of_actor(batch["next_obs"], self._actor), noise[0])
        value = np.minimum.reduce(self._targets.values(inputs.both), 0)
        if algorithm.backs_up_entropy:
            log_prob *= alpha
            value -= log_prob
        metrics = self._critics.learn(batch, inputs, value, self._critic_step)
        if actor_learns:
            x = inputs.of_actor(batch["obs"], self._actor)
            algorithm.actor_metrics |= self._learn_actor(x, noise[1], alpha)
        if algorithm.updates % config.target_update_interval == 0:
            self._move_target()
        return metrics | {"alpha": temperature} | algorithm.actor_metrics

    def _inputs_for(self, batch: Any) -> Inputs:
        rows = len(batch["reward"])
        if rows != self._rows:
            self._take_memory(rows)
        return self._inputs

    def _sample(self, x: Array, noise: Array) -> tuple[Array, Array, Array]:
        """Put actions among the inputs.

        Returns:
            [N] their log-density, [N, k] std * noise, and [N, k] bool, which log standard
            deviations are not cut off.
        """
        outputs = self._actor_network.forward(x)
        mean, raw = outputs[:, : self._size], outputs[:, self._size :]
        lowest, highest = map(np.float32, self._algorithm.policy.log_std_range)
        log_std = np.maximum(raw, lowest)
        np.minimum(log_std, highest, out=log_std)
        spread = np.exp(log_std)
        spread *= noise
        u = mean + spread
        np.tanh(u, out=self._inputs.action)
        return squashed_log_prob(noise, log_std, u), spread, raw == log_std

    def _learn_actor(self, x: Array, noise: Array, alpha: Any) -> dict[str, Tensor]:
        """One step of the actor, and one of the temperature from the same actions."""
        action, size = self._inputs.action, self._size
        log_prob, spread, is_free = self._sample(x, noise)
        values = self._critics.values(self._inputs.both)
        value = np.minimum.reduce(values, 0)
        chosen = (values == value).astype(np.float32)
        share = np.float32(1.0 / len(value))
        chosen *= -share / np.add.reduce(chosen, 0)
        grad = self._critics.action_gradient(chosen, size)
        slope = action * action
        slope *= grad
        grad -= slope
        grad += action * (_TWO * share * alpha)
        spread *= grad
        spread -= share * alpha
        spread *= is_free
        self._grad[:, :size], self._grad[:, size:] = grad, spread
        self._actor_network.backward(self._grad)
        self._actor_step()
        entropy = -np.add.reduce(log_prob) * share
        if self._alpha_step is not None:
            # d/d log_alpha of log_alpha * (mean(H) - target)
            self._spare_entropy.numpy()[()] = entropy - np.float32(self._algorithm.target_entropy)
            self._alpha_step()
        loss = -(np.add.reduce(value) * share + alpha * entropy)
        return as_metrics(actor_loss=loss, entropy=entropy)
