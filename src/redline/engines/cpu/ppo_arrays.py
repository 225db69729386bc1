"""All of PPO's passes over a rollout with hand-derived gradients in numpy and C.

The formulas are those of `ppo` beside this file, the losses those of `algos/ppo.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.ppo import PPO
from redline.data import Array, Rollout, map_leaves
from redline.engines.cpu.actor_critic import DerivedActorCritic
from redline.engines.cpu.array_actor_critic import ArrayActorCritic

# Rows of `_Rows.columns`.
_OLD_LOG_PROB, _OLD_VALUE, _VALID, _ADVANTAGE, _TARGET = range(5)


class ArrayPPO:
    """`passes` in place of those of `PPO`.

    Args:
        algorithm: owns parameters, optimiser and counts.
        networks: of its policy, on the CPU.
    """

    def __init__(self, algorithm: PPO, networks: DerivedActorCritic) -> None:
        self._algorithm, self._networks = algorithm, networks
        self._arrays = ArrayActorCritic(networks)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def passes(self, rollout: Rollout, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        """As `PPO.passes`."""
        algorithm, config = self._algorithm, self._algorithm.config
        rows = self._rows(rollout, advantage, target)
        size = len(rows.x) // config.num_minibatches
        clip_range = float(algorithm.clip_range.numpy())
        totals: dict[str, float] = {}
        count, stopped = 0, False
        for _ in range(config.num_epochs):
            order = algorithm.permutation(len(rows.x)).numpy()
            if stopped:
                continue  # the orders are drawn all the same, as those that skip on a device do
            shuffled = rows.take(order)
            for start in range(0, len(order), size):
                metrics = self._step(shuffled.part(start, start + size), clip_range)
                count += 1
                for name, value in metrics.items():
                    totals[name] = totals.get(name, 0.0) + float(value)
                stopped = config.target_kl is not None and metrics["approx_kl"] > config.target_kl
                if stopped:
                    break
        algorithm.count_steps(count)
        means = {name: torch.tensor(total / count) for name, total in totals.items()}
        if config.target_kl is not None:
            means["stopped_early"] = torch.tensor(float(stopped))
        return means

    def _rows(self, rollout: Rollout, advantage: Tensor, target: Tensor) -> _Rows:
        """All rows of a rollout side by side; observations pass the normaliser once."""
        obs, action = rollout["obs"], rollout["action"]
        x = self._networks.inputs(map_leaves(lambda leaf: leaf.flatten(0, 1), obs)).numpy()
        columns = np.stack(
            [
                leaf.flatten().numpy()
                for leaf in (
                    rollout["log_prob"],
                    rollout["value"],
                    rollout["valid"].to(torch.float32),
                    advantage,
                    target,
                )
            ]
        )
        return _Rows(x, action.flatten(0, 1).numpy(), columns)

    def _step(self, rows: _Rows, clip_range: float) -> dict[str, Any]:
        """One optimiser step; the metrics of the rows before it."""
        config, optimizer = self._algorithm.config, self._algorithm.optimizer
        valid, advantage = rows.columns[_VALID], rows.columns[_ADVANTAGE]
        weight = valid / max(valid.sum(), np.float32(1.0))
        if config.normalize_advantage:
            advantage = advantage - weight.dot(advantage)
            advantage /= np.sqrt(weight.dot(advantage * advantage)) + np.float32(1e-8)
        log_prob, entropy, value = self._arrays.forward(rows.x, rows.action)
        log_ratio = log_prob - rows.columns[_OLD_LOG_PROB]
        ratio = np.exp(log_ratio)
        gain = ratio * advantage
        clipped = np.clip(ratio, 1.0 - clip_range, 1.0 + clip_range) * advantage
        log_prob_grad = weight * gain
        log_prob_grad *= -(gain <= clipped).astype(np.float32)
        squared, slope = self._value_error(value, rows)
        value_grad = np.float32(config.value_coef) * weight * slope
        entropy_grad = np.float32(-config.entropy_coef) * weight
        self._arrays.backward(log_prob_grad, entropy_grad, value_grad)
        norm = self._arrays.clip(config.max_grad_norm)
        optimizer.step(self._networks.gradients.views)
        return {
            "policy_loss": -weight.dot(np.minimum(gain, clipped)),
            "value_loss": 0.5 * weight.dot(squared),
            "entropy": weight.dot(entropy),
            "approx_kl": weight.dot(ratio - 1.0 - log_ratio),
            "clip_fraction": weight.dot((np.abs(ratio - 1.0) > clip_range).astype(np.float32)),
            "grad_norm": norm,
        }

    def _value_error(self, value: Array, rows: _Rows) -> tuple[Array, Array]:
        """[N] the squared error that counts, and half its derivative."""
        error = value - rows.columns[_TARGET]
        limit = self._algorithm.config.clip_range_value
        if limit is None:
            return error * error, error
        change = value - rows.columns[_OLD_VALUE]
        near = rows.columns[_OLD_VALUE] + np.clip(change, -limit, limit) - rows.columns[_TARGET]
        squared, near_squared = error * error, near * near
        inside = near * (np.abs(change) <= limit)
        slope = np.where(squared >= near_squared, error, inside)
        return np.maximum(squared, near_squared), slope


class _Rows:
    """Rows to learn from.

    Args:
        x: [N, F] inputs of the networks.
        action: [N, ...] what was done.
        columns: [5, N] what is one number per row.
    """

    def __init__(self, x: Array, action: Array, columns: Array) -> None:
        self.x, self.action, self.columns = x, action, columns

    def take(self, order: Array) -> _Rows:
        """These rows in another order."""
        return _Rows(self.x.take(order, 0), self.action.take(order, 0), self.columns.take(order, 1))

    def part(self, start: int, stop: int) -> _Rows:
        """Some of the rows, in the same memory."""
        return _Rows(self.x[start:stop], self.action[start:stop], self.columns[:, start:stop])
