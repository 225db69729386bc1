"""SAC's update for Box actions with hand-derived gradients; losses are in `algos/sac.py`.

With a = tanh(u), u = mean + std * noise, N rows and one sample of actions:

    L_actor = mean(alpha log pi - V),   V = min over Q (or their mean)
    dL/du = 2 a alpha / N + (1 - a^2) * dL/da,   dL/da = -dV/da / N
    dL/dmean = dL/du,   dL/dlog_std = dL/du * std * noise - alpha / N

and no gradient where the log standard deviation is cut off.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redline.algos.critics import bootstrapped
from redline.algos.sac import SAC, Draws
from redline.engines.cpu.array_networks import InArrays
from redline.engines.cpu.networks import DerivedActor, DerivedCritic
from redline.engines.cpu.own_step import OwnStep
from redline.engines.cpu.sac_arrays import ArraySAC
from redline.policies.actors import squashed_log_prob


class DerivedSAC(OwnStep):
    """`step` in place of that of `SAC`.

    Args:
        algorithm: owns parameters, optimisers, generator and counts.
        actor: of `algorithm.policy`.
        critic: of `algorithm.critic`.
        target: of `algorithm.target`.
    """

    def __init__(
        self, algorithm: SAC, actor: DerivedActor, critic: DerivedCritic, target: DerivedCritic
    ) -> None:
        self.algorithm = algorithm
        self._actor, self._critic, self._target = actor, critic, target
        self._size = algorithm.policy.action_size
        self._log_std_range = algorithm.policy.log_std_range
        networks = actor, critic, target
        self._arrays = InArrays(networks, lambda rows: ArraySAC(algorithm, *networks, rows))

    @classmethod
    def of(cls, algorithm: SAC) -> DerivedSAC | None:
        """None if a network is not plain, or a subset of the critics is drawn."""
        actor = DerivedActor.of(algorithm.policy, algorithm.actor_optimizer)
        critic = DerivedCritic.of(algorithm.critic, algorithm.critic_optimizer)
        target = DerivedCritic.of(algorithm.target)
        if algorithm.config.critic_subset is not None or not (actor and critic and target):
            return None
        return cls(algorithm, actor, critic, target)

    def step(
        self, batch: Any, drawn: Draws, moves: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As `SAC.step`."""
        arrays = self._arrays.step_for(len(drawn.noise[0]))
        if arrays is not None:
            return arrays.step(batch, drawn, moves)
        algorithm, alpha, noise = self.algorithm, self.algorithm.alpha(), drawn.noise
        action, log_prob, _ = self._sample(batch["next_obs"], noise[0])
        inputs = torch.cat([self._target.encode(batch["next_obs"]), action], 1)
        value = _least(self._target.values(inputs))
        soft_value = torch.addcmul(value, alpha, log_prob, value=-1.0)
        target = bootstrapped(batch["reward"], batch["discount"], soft_value)
        features = self._critic.encode(batch["obs"])
        done = batch["action"].flatten(1)
        loss, q_value, priority = self._critic.learn(
            torch.cat([features, done], 1), target, batch["weight"], algorithm.critic_optimizer
        )
        actor_metrics: dict[str, Tensor] = {}
        if len(noise) > 1:
            actor_metrics = self._learn_actor(batch["obs"], features, noise[1], alpha)
        if moves:
            algorithm.move_target()
        metrics = {"critic_loss": loss, "q_value": q_value, "priority": priority, "alpha": alpha}
        return metrics, actor_metrics

    def _sample(self, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Actions [N, k], their log-density [N], and what backpropagation needs."""
        kept = self._actor.perceptron.forward(self._actor.encoder(obs))
        mean, raw = kept[-1].chunk(2, dim=1)
        log_std = raw.clamp(*self._log_std_range)
        spread = log_std.exp() * noise
        u = mean + spread
        return torch.tanh(u), squashed_log_prob(noise, log_std, u), (kept, raw, log_std, spread)

    def _learn_actor(
        self, obs: Any, features: Tensor, noise: Tensor, alpha: Tensor
    ) -> dict[str, Tensor]:
        """One step of the actor, and one of the temperature from the same actions."""
        algorithm = self.algorithm
        action, log_prob, (kept, raw, log_std, spread) = self._sample(obs, noise)
        inputs = torch.cat([features, action], 1)
        tapes = [member.forward(inputs) for member in self._critic.members]
        values = torch.stack([tape[-1].squeeze(1) for tape in tapes])
        value = values.amin(0)
        share = 1.0 / len(value)
        chosen = (values == value).to(value.dtype)
        chosen *= -share / chosen.sum(0)  # equal values share, as autograd does it
        grad = self._critic.action_gradient(
            self._critic.members, tapes, list(chosen.unbind()), self._size
        )
        grad = torch.addcmul(grad, grad, action.square(), value=-1.0)
        grad = grad.addcmul_(action, 2.0 * share * alpha)
        grad_log_std = torch.addcmul(-share * alpha, grad, spread)
        grad_log_std *= log_std == raw
        self._actor.perceptron.backward(kept, torch.cat([grad, grad_log_std], 1), columns=None)
        algorithm.actor_optimizer.step(self._actor.gradients)
        entropy = -log_prob.mean()
        if algorithm.alpha_optimizer is not None:
            # d/d log_alpha of log_alpha * (mean(H) - target)
            target: Any = algorithm.target_entropy
            algorithm.alpha_optimizer.step([entropy - target])
        loss = -torch.addcmul(value, alpha, log_prob, value=-1.0).mean()
        return {"actor_loss": loss, "entropy": entropy}


def _least(values: list[Tensor]) -> Tensor:
    """[N] the minimum over the members."""
    least = values[0]
    for value in values[1:]:
        least = torch.minimum(least, value)
    return least
