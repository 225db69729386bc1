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

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from redline.algos.algorithm import clip_gradients, explained_variance, normalized
from redline.algos.configs import PPOConfig
from redline.algos.optimizers import Adam
from redline.data import Rollout, map_leaves, masked_mean
from redline.errors import ConfigError
from redline.models.observation_encoder import image_layout
from redline.policies.policy import ActionEvaluation, Policy
from redline.returns import gae


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    valid: Tensor,
    clip_range: float | Tensor,
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
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
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


class Minibatch(NamedTuple):
    """One part of a rollout: [n] rows, or [T, b] sequences for a recurrent policy.

    Attributes:
        obs: [..., ...] observations.
        action: [..., ...] what was done.
        old_log_prob: [...] of it, by the policy that acted.
        old_value: [...] by the policy that acted.
        valid: [...] bool.
        advantage: [...] from `returns.gae`.
        target: [...] of the value.
        sequences: [T, b] the same rows with what a recurrent policy needs; else None.
    """

    obs: Any
    action: Any
    old_log_prob: Tensor
    old_value: Tensor
    valid: Tensor
    advantage: Tensor
    target: Tensor
    sequences: Rollout | None = None


Passes: TypeAlias = Callable[[Rollout, Tensor, Tensor], dict[str, Tensor]]


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
        self.device = self._parameters[0].device
        self.optimizer = Adam(self._parameters, config.learning_rate, eps=config.adam_eps)
        self._generator = torch.Generator(device=self.device).manual_seed(seed)
        self._steps_taken = torch.zeros((), dtype=torch.int64, device=self.device)
        # A tensor: a compiled or captured step sees the schedule change it.
        self.clip_range = torch.tensor(config.clip_range, device=self.device)
        self._layout = image_layout(policy)
        # Observations to what `step` is given of them, once per rollout.
        self.prepare: Callable[[Any], Any] | None = None
        # Another way to make all passes over a rollout, with the same results.
        self.accelerated_passes: Callable[[Rollout, Tensor, Tensor], dict[str, Tensor]] | None = (
            None
        )

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` and `clip_range` from the schedules."""
        self.optimizer.set_learning_rate(values.get("learning_rate", self.config.learning_rate))
        self.clip_range.fill_(values.get("clip_range", self.config.clip_range))

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
        """Learn from a rollout whose log_prob and value are what the update starts from."""
        means = (self.accelerated_passes or self.passes)(rollout, advantage, target)
        means["explained_variance"] = explained_variance(rollout["value"], target, rollout["valid"])
        return means

    def passes(self, rollout: Rollout, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        """All optimiser steps from one rollout; the means of their metrics.

        Args:
            rollout: [T, B] with the extras `log_prob` and `value`.
            advantage: [T, B].
            target: [T, B] of the value.
        """
        totals: dict[str, Tensor] = {}
        stopped = torch.zeros((), device=self.device)
        for batch in self._minibatches(rollout, advantage, target):
            metrics = self.step(batch, stopped)
            running = 1.0 - stopped
            metrics["_count"] = torch.ones_like(running)
            _accumulate(totals, metrics, running if self.config.target_kl is not None else None)
            if self.config.target_kl is not None:
                self._steps_taken += running.to(torch.int64)
                passed = metrics["approx_kl"] > self.config.target_kl
                stopped = torch.maximum(stopped, passed.to(stopped.dtype))
        if self.config.target_kl is None:
            self._steps_taken += self.config.num_epochs * self.config.num_minibatches
        count = totals.pop("_count")
        means = {name: total / count for name, total in totals.items()}
        if self.config.target_kl is not None:
            means["stopped_early"] = stopped
        return means

    def _minibatches(
        self, rollout: Rollout, advantage: Tensor, target: Tensor
    ) -> Iterator[Minibatch]:
        """num_epochs times equal parts in random order, of rows or of whole sequences."""
        if self.policy.is_recurrent:
            for _ in range(self.config.num_epochs):
                order = self.permutation(rollout.num_envs)
                for index in order.split(len(order) // self.config.num_minibatches):
                    part = rollout.select_envs(index)
                    yield _minibatch(part, advantage[:, index], target[:, index])
            return
        if self.policy.conditioning_names:
            keys = ("obs", "action", "log_prob", "value", "valid", *self.policy.conditioning_names)
            rows = rollout.flatten(*keys)
            advantage, target = advantage.flatten(), target.flatten()
            for _ in range(self.config.num_epochs):
                order = self.permutation(len(advantage))
                for index in order.split(len(order) // self.config.num_minibatches):
                    part = rows.select_envs(index)
                    yield _minibatch(part, advantage[None, index], target[None, index])
            return
        whole = _minibatch(rollout, advantage, target)
        fields = {name: map_leaves(_merge_time, getattr(whole, name)) for name in _ROW_FIELDS}
        fields["obs"] = self._prepared(fields["obs"])
        size = advantage.numel() // self.config.num_minibatches
        for _ in range(self.config.num_epochs):
            # All rows are put in order at once: a gather for each minibatch costs more.
            order = self.permutation(advantage.numel())
            shuffled = {
                name: map_leaves(lambda leaf, order=order: _take(leaf, order), field)
                for name, field in fields.items()
            }
            for start in range(0, len(order), size):
                rows = slice(start, start + size)
                yield Minibatch(
                    **{
                        name: map_leaves(lambda leaf, rows=rows: leaf[rows], field)
                        for name, field in shuffled.items()
                    }
                )

    def _prepared(self, obs: Any) -> Any:
        """All rows' observations as every pass over them wants them."""
        if self._layout is not None:
            obs = map_leaves(self._layout, obs)
        return obs if self.prepare is None else self.prepare(obs)

    def count_steps(self, count: int) -> None:
        """Note so many optimiser steps, taken elsewhere."""
        self._steps_taken += count

    def permutation(self, length: int) -> Tensor:
        """[length] int64 the next random order of minibatches."""
        return torch.randperm(length, generator=self._generator, device=self.device)

    def step(self, batch: Minibatch, stopped: Tensor) -> dict[str, Tensor]:
        """One optimiser step, which the device skips where `stopped` is 1."""
        if batch.sequences is not None:
            output = self.policy.evaluate_rollout(batch.sequences)
        else:
            output = self.policy.evaluate_actions(batch.obs, batch.action)
        loss, metrics = self._loss(output, batch)
        self.optimizer.zero_grad()
        loss.backward()
        metrics["grad_norm"] = clip_gradients(self._parameters, self.config.max_grad_norm)
        if self.config.target_kl is None:
            self.optimizer.step()
        else:
            self.optimizer.step(skip=stopped)
        return metrics

    def _loss(self, output: ActionEvaluation, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        config, valid, advantage = self.config, batch.valid, batch.advantage
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        policy_loss, clip_fraction = clipped_policy_loss(
            output.log_prob, batch.old_log_prob, advantage, valid, self.clip_range
        )
        critic_loss = value_loss(
            output.value, batch.old_value, batch.target, valid, config.clip_range_value
        )
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * critic_loss - config.entropy_coef * entropy
        with torch.no_grad():
            log_ratio = output.log_prob - batch.old_log_prob
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
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "optimizer_steps": self.optimizer_steps(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())
        self._steps_taken.fill_(state["optimizer_steps"])


_ROW_FIELDS = ("obs", "action", "old_log_prob", "old_value", "valid", "advantage", "target")


def _minibatch(rollout: Rollout, advantage: Tensor, target: Tensor) -> Minibatch:
    """All of a rollout, with its advantages and value targets."""
    return Minibatch(
        rollout["obs"],
        rollout["action"],
        rollout["log_prob"],
        rollout["value"],
        rollout["valid"],
        advantage,
        target,
        rollout,
    )


def _take(leaf: Tensor, order: Tensor) -> Tensor:
    """Rows of a leaf, in its own layout: an image with the channels last in memory keeps them."""
    if leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last):
        return leaf.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)
    return leaf.index_select(0, order)


def _merge_time(leaf: Tensor) -> Tensor:
    return leaf.flatten(0, 1)


def _accumulate(
    totals: dict[str, Tensor], metrics: Mapping[str, Tensor], share: Tensor | None
) -> None:
    """Add metrics, times `share` if given, to the totals."""
    for name, value in metrics.items():
        value = value if share is None else value * share
        totals[name] = totals[name] + value if name in totals else value
