"""PPO's optimiser step with hand-derived gradients; the losses are in `algos/ppo.py`.

With row weights w (1 / rows where valid, else 0), r the ratio, A the advantage:

    dL/d log pi = -w r A  where r A <= clip(r) A, else 0
    dL/dV = c_v w (V - y), or that of the clipped error where it is the larger one
    dL/dH = -c_e w
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.algos.ppo import PPO, Minibatch
from redline.engines.cpu.actor_critic import DerivedActorCritic
from redline.engines.cpu.array_actor_critic import ArrayActorCritic
from redline.engines.cpu.own_step import OwnStep
from redline.engines.cpu.ppo_arrays import ArrayPPO


class DerivedPPO(OwnStep):
    """`step` in place of that of `PPO`.

    Args:
        algorithm: owns parameters, optimiser and counts.
        networks: of its policy.
    """

    def __init__(self, algorithm: PPO, networks: DerivedActorCritic) -> None:
        self.algorithm, self._networks = algorithm, networks
        # One pass over a rollout's observations serves all of its minibatches: the
        # statistics that normalise them do not move during an update.
        self.prepare = networks.inputs
        config = algorithm.config
        rows = config.num_envs * config.rollout_length // config.num_minibatches
        # Where they suit it all passes go faster in numpy and C.
        plain = not torch.compiler.is_compiling() and ArrayActorCritic.suits(networks, rows)
        self.passes = ArrayPPO(algorithm, networks).passes if plain else None

    @classmethod
    def of(cls, algorithm: PPO) -> DerivedPPO | None:
        """None if the policy is not plain."""
        networks = DerivedActorCritic.of(algorithm.policy, algorithm.optimizer.parameters)
        return None if networks is None else cls(algorithm, networks)

    def step(self, batch: Minibatch, stopped: Tensor) -> dict[str, Tensor]:
        """As `PPO.step`, on inputs that `prepare` made."""
        algorithm, config, networks = self.algorithm, self.algorithm.config, self._networks
        weight = batch.valid.to(batch.advantage.dtype)
        weight = weight / weight.sum().clamp(min=1.0)
        advantage = batch.advantage
        if config.normalize_advantage:
            advantage = advantage - torch.dot(weight, advantage)
            advantage = advantage / (torch.dot(weight, advantage.square()).sqrt() + 1e-8)
        kept = networks.forward(batch.obs, batch.action)
        log_ratio = kept.log_prob - batch.old_log_prob
        ratio = log_ratio.exp()
        limit = algorithm.clip_range
        gain = ratio * advantage
        clipped = ratio.clamp(1.0 - limit, 1.0 + limit) * advantage  # type: ignore[arg-type]
        log_prob_grad = -weight * gain * (gain <= clipped)
        value_error, slope = self._value_error(kept.value, batch)
        value_grad = (config.value_coef * weight) * slope
        networks.backward(kept, log_prob_grad, -config.entropy_coef * weight, value_grad)
        norm = networks.gradients.clip(config.max_grad_norm)
        skip = None if config.target_kl is None else stopped
        algorithm.optimizer.step(networks.gradients.views, skip=skip)
        outside = (ratio - 1.0).abs() > limit
        return {
            "policy_loss": -torch.dot(weight, torch.minimum(gain, clipped)),
            "value_loss": 0.5 * torch.dot(weight, value_error),
            "entropy": torch.dot(weight, kept.entropy),
            "approx_kl": torch.dot(weight, ratio - 1.0 - log_ratio),
            "clip_fraction": torch.dot(weight, outside.to(weight.dtype)),
            "grad_norm": norm,
        }

    def _value_error(self, value: Tensor, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """[N] the squared error that counts, and half its derivative."""
        error = value - batch.target
        limit = self.algorithm.config.clip_range_value
        if limit is None:
            return error.square(), error
        change = value - batch.old_value
        near = batch.old_value + change.clamp(-limit, limit) - batch.target
        squared, near_squared = error.square(), near.square()
        inside = near * (change.abs() <= limit)
        slope = torch.where(squared >= near_squared, error, inside)
        return torch.maximum(squared, near_squared), slope
