"""Proximal policy optimisation (PPO) with the clipped surrogate.

Schulman et al. 2017, arXiv:1707.06347. Reads top to bottom: `clipped_policy_loss`,
`value_loss`, `PPO.update`; hyperparameters are in `algos/configs/ppo.py`.

| symbol | shape | meaning |
|---|---|---|
| r | [N] | pi(a|s) / pi_old(a|s) |
| A | [N] | advantage from `returns.gae` |
| epsilon | | `clip_range` |

Data: a `Rollout` [T, B]. A feed-forward policy shuffles all T * B rows into equal
minibatches; a recurrent one shuffles environments and replays whole sequences with the
resets that acting had.

Departs from the paper: advantages are normalised per minibatch, gradients are clipped by
norm, and a limit on the KL divergence can stop an iteration's updates early.

Cost: num_epochs * num_minibatches optimiser steps per rollout. `update` never waits for
the device: metrics stay tensors until the logger reads them, and the early stop skips
optimiser steps on the device instead of leaving the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redline.algos.algorithm import (
    clip_gradients,
    explained_variance,
    load_optimizer_state,
    normalized,
    optimizer_state,
    set_learning_rate,
)
from redline.algos.configs import PPOConfig
from redline.data import Rollout, masked_mean
from redline.errors import ConfigError
from redline.policies.policy import Policy, ReplayOutput
from redline.returns import gae


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor, clip_range: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, negated so that it is minimised.

    Schulman et al. 2017, eq. 7, with r = exp(log_prob - old_log_prob):
        loss = -mean(min(r * A, clip(r, 1 - eps, 1 + eps) * A))

    Args:
        log_prob: [...] log pi(a|s) of the current policy, in nats; carries gradient.
        old_log_prob: [...] the same under the policy that collected the data.
        advantage: [...] A, normalised by the caller; a constant here.
        valid: [...] bool, the rows to average over.
        clip_range: eps > 0, dimensionless.

    Returns:
        The loss [], and the fraction [] of ratios outside the clip range.
    """
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    loss = -masked_mean(torch.minimum(ratio * advantage, clipped * advantage), valid)
    outside = ((ratio.detach() - 1.0).abs() > clip_range).to(loss.dtype)
    return loss, masked_mean(outside, valid)


def value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    valid: Tensor,
    clip_range_value: float | None,
) -> Tensor:
    """Half the mean squared error of the value, optionally with the change clipped.

    Without clipping: mean((V - target)^2) / 2. With it (as in the authors' code), the
    larger of that error and the error of V_old + clip(V - V_old, -eps, eps).

    Args:
        value: [...] V(s) of the current parameters; carries gradient.
        old_value: [...] V(s) when the data were collected.
        target: [...] value target from `returns.gae`.
        valid: [...] bool, the rows to average over.
        clip_range_value: eps > 0 in units of the return; None: no clipping.
    """
    error = (value - target).square()
    if clip_range_value is not None:
        near = old_value + (value - old_value).clamp(-clip_range_value, clip_range_value)
        error = torch.maximum(error, (near - target).square())
    return 0.5 * masked_mean(error, valid)


@dataclass(slots=True)
class Minibatch:
    """One part of a rollout: [n] rows, or [T, b] sequences for a recurrent policy."""

    rollout: Rollout
    advantage: Tensor
    target: Tensor


class PPO:
    """PPO on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: of the minibatch permutation.

    Raises:
        ConfigError: if a recurrent policy's environments do not split into the minibatches.
    """

    def __init__(self, policy: Policy, config: PPOConfig, seed: int = 0) -> None:
        self.policy = policy
        self.config = config
        if policy.is_recurrent and config.num_envs % config.num_minibatches:
            raise ConfigError(
                f"num_minibatches={config.num_minibatches} does not divide num_envs="
                f"{config.num_envs}: a recurrent policy learns from whole sequences, so "
                f"minibatches are made of environments. Use a divisor of {config.num_envs}."
            )
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._optimizer = torch.optim.Adam(
            self._parameters, lr=config.learning_rate, eps=config.adam_eps, fused=True
        )
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._steps_taken = torch.zeros((), dtype=torch.int64, device=self._device)
        self._clip_range = config.clip_range

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` and `clip_range` from the schedules."""
        set_learning_rate(self._optimizer, values.get("learning_rate", self.config.learning_rate))
        self._clip_range = values.get("clip_range", self.config.clip_range)

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Run num_epochs passes of minibatch updates over one rollout.

        Args:
            rollout: [T, B] with the extras `log_prob` and `value`.

        Returns:
            name -> [] means over the optimiser steps taken.
        """
        advantage, target = gae(
            rollout["reward"],
            rollout["value"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        return self._optimize(rollout, advantage, target)

    def _optimize(self, rollout: Rollout, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The passes over a rollout whose log_prob and value are what the update starts from."""
        totals: dict[str, Tensor] = {}
        stopped = torch.zeros((), device=self._device)
        for _ in range(self.config.num_epochs):
            for batch in self._minibatches(rollout, advantage, target):
                metrics = self._step(batch, stopped)
                running = 1.0 - stopped
                for name, value in metrics.items():
                    totals[name] = totals.get(name, torch.zeros_like(value)) + value * running
                totals["_count"] = totals.get("_count", torch.zeros_like(running)) + running
                if self.config.target_kl is not None:
                    passed = metrics["approx_kl"] > self.config.target_kl
                    stopped = torch.maximum(stopped, passed.to(stopped.dtype))
        count = totals.pop("_count")
        means = {name: total / count for name, total in totals.items()}
        means["explained_variance"] = explained_variance(rollout["value"], target, rollout["valid"])
        if self.config.target_kl is not None:
            means["stopped_early"] = stopped
        return means

    def _minibatches(
        self, rollout: Rollout, advantage: Tensor, target: Tensor
    ) -> Iterator[Minibatch]:
        """Equal parts in random order: of rows, or of environments for a recurrent policy."""
        if self.policy.is_recurrent:
            for index in self._permutation(rollout.num_envs):
                part = rollout.select_envs(index)
                yield Minibatch(part, advantage[:, index], target[:, index])
            return
        rows = rollout.flatten(
            "obs", "action", "log_prob", "value", "valid", *self.policy.conditioning_names
        )
        advantage, target = advantage.flatten(), target.flatten()
        for index in self._permutation(len(advantage)):
            yield Minibatch(rows.select_envs(index), advantage[None, index], target[None, index])

    def _permutation(self, length: int) -> tuple[Tensor, ...]:
        order = torch.randperm(length, generator=self._generator, device=self._device)
        return order.split(length // self.config.num_minibatches)

    def _step(self, batch: Minibatch, stopped: Tensor) -> dict[str, Tensor]:
        """One optimiser step, which the device skips where `stopped` is 1."""
        output = self.policy.replay(batch.rollout)
        loss, metrics = self._loss(output, batch)
        self._optimizer.zero_grad()
        loss.backward()
        metrics["grad_norm"] = clip_gradients(self._parameters, self.config.max_grad_norm)
        if self.config.target_kl is not None:
            # The mixed-precision hook of fused optimisers: a step is skipped on the device.
            self._optimizer.found_inf = stopped  # type: ignore[attr-defined]
        self._optimizer.step()
        self._steps_taken += (1.0 - stopped).to(torch.int64)
        return metrics

    def _loss(self, output: ReplayOutput, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        config, rollout = self.config, batch.rollout
        valid, old_log_prob = rollout["valid"], rollout["log_prob"]
        advantage = batch.advantage
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        policy_loss, clip_fraction = clipped_policy_loss(
            output.log_prob, old_log_prob, advantage, valid, self._clip_range
        )
        critic_loss = value_loss(
            output.value, rollout["value"], batch.target, valid, config.clip_range_value
        )
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * critic_loss - config.entropy_coef * entropy
        with torch.no_grad():
            log_ratio = output.log_prob - old_log_prob
            # Schulman's low-variance, non-negative estimator: E[(r - 1) - log r].
            approx_kl = masked_mean(log_ratio.exp() - 1.0 - log_ratio, valid)
        return loss, {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": approx_kl,
            "clip_fraction": clip_fraction,
        }

    def optimizer_steps(self) -> int:
        """Optimiser steps taken, without the skipped ones. Waits for the device."""
        return int(self._steps_taken)

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimiser state, permutation RNG and the count of steps."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": optimizer_state(self._optimizer),
            "generator": self._generator.get_state(),
            "optimizer_steps": self.optimizer_steps(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        load_optimizer_state(self._optimizer, state["optimizer"])
        self._generator.set_state(state["generator"].cpu())
        self._steps_taken.fill_(state["optimizer_steps"])
