"""PPO's and APPO's updates with gradients derived by hand; the losses are in `algos/ppo.py`.

With row weights w (1 / rows where valid, else 0), r the ratio and A the advantage:

    dL/d log pi = -w r A  where r A <= clip(r) A, else 0
    dL/dV = c_v w (V - y), or that of the clipped error where it is the larger one
    dL/dH = -c_e w
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redline.algos.algorithm import explained_variance
from redline.algos.appo import APPO
from redline.algos.impala import corrected
from redline.algos.ppo import PPO
from redline.data import Array, Rollout
from redline.engines.cpu.policy_gradient import ActorCriticNetworks
from redline.returns import gae

# Rows of `_Rows.columns`.
_OLD_LOG_PROB, _OLD_VALUE, _VALID, _ADVANTAGE, _TARGET = range(5)


class _Rows(NamedTuple):
    """Rows to learn from.

    Attributes:
        x: [N, F] inputs of the networks.
        action: [N, ...] what was done.
        columns: [5, N] what is one number per row.
    """

    x: Array
    action: Array
    columns: Array

    def take(self, order: Array) -> _Rows:
        """These rows in another order."""
        return _Rows(self.x.take(order, 0), self.action.take(order, 0), self.columns.take(order, 1))

    def part(self, start: int, stop: int) -> _Rows:
        """Some of the rows, in the same memory."""
        return _Rows(self.x[start:stop], self.action[start:stop], self.columns[:, start:stop])


class PPOUpdate:
    """In place of `PPO.update` and `APPO.update`.

    Args:
        algorithm: owns parameters, optimizer, generator and counts, which are changed in place.


    Raises:
        NotServedError: if a part is not known.
    """

    def __init__(self, algorithm: PPO) -> None:
        config = algorithm.config
        rows = config.num_envs * config.rollout_length // algorithm.num_minibatches
        self._algorithm: Any = algorithm
        self._networks = ActorCriticNetworks(algorithm, rows)
        self._is_appo = type(algorithm) is APPO

    def __call__(self, rollout: Rollout) -> dict[str, Tensor]:
        """As `PPO.update` or `APPO.update`."""
        valid = rollout["valid"]
        old_log_prob, old_value, metrics = rollout["log_prob"], rollout["value"], {}
        if self._is_appo:
            with torch.no_grad():
                output = self._algorithm.policy.evaluate_rollout(rollout)
            result, metrics = corrected(
                self._algorithm.policy, rollout, output, self._algorithm.config
            )
            old_log_prob, old_value = output.log_prob, output.value
            advantage, target = result.advantage, result.target
        else:
            advantage, target = self._estimate(rollout)
        rows = self._rows(rollout, old_log_prob, old_value, advantage, target)
        means = self._passes(rows)
        means["explained_variance"] = explained_variance(old_value, target, valid)
        return means | metrics

    def _estimate(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Advantages and value targets, [T, B]."""
        return gae(
            rollout["reward"],
            rollout["value"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            gamma=self._algorithm.config.gamma,
            gae_lambda=self._algorithm.config.gae_lambda,
        )

    def _rows(self, rollout: Rollout, *columns: Tensor) -> _Rows:
        """All rows of a rollout side by side.

        What belongs to rows that are not valid becomes 0, so that whatever stands there reaches no
        sum, not even times 0.
        """
        old_log_prob, old_value, advantage, target = columns
        is_valid = rollout["valid"].to(torch.float32)
        stacked = np.stack(
            [
                leaf.flatten().numpy()
                for leaf in (old_log_prob, old_value, is_valid, advantage, target)
            ]
        )
        is_idle = stacked[_VALID] == 0.0
        if is_idle.any():
            stacked[:, is_idle] = 0.0
        x = self._networks.rows_of(rollout["obs"])
        return _Rows(x, rollout["action"].flatten(0, 1).numpy(), stacked)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def _passes(self, rows: _Rows) -> dict[str, Tensor]:
        """All optimizer steps from one rollout; the means of their metrics."""
        algorithm, config = self._algorithm, self._algorithm.config
        size = len(rows.x) // algorithm.num_minibatches
        clip_range = float(algorithm.clip_range.numpy())
        entropy_coef = np.float32(algorithm.entropy_coef.numpy())
        totals: dict[str, float] = {}
        count, stopped = 0, False
        for _ in range(config.num_epochs):
            order = algorithm.permutation(len(rows.x)).numpy()
            if stopped:
                continue  # eager updates draw these orders as well, and skip their steps
            shuffled = rows.take(order)
            for start in range(0, len(order), size):
                part = shuffled.part(start, start + size)
                metrics = self._step(part, clip_range, entropy_coef)
                count += 1
                for name, value in metrics.items():
                    totals[name] = totals.get(name, 0.0) + float(value)
                stopped = config.target_kl is not None and metrics["approx_kl"] > config.target_kl
                if stopped:
                    break
        algorithm.steps_taken += count
        means = {name: torch.tensor(total / count) for name, total in totals.items()}
        if config.target_kl is not None:
            means["stopped_early"] = torch.tensor(float(stopped))
        return means

    def _step(self, rows: _Rows, clip_range: float, entropy_coef: np.float32) -> dict[str, Any]:
        """One optimizer step; the metrics of the rows before it."""
        config, networks = self._algorithm.config, self._networks
        valid, advantage = rows.columns[_VALID], rows.columns[_ADVANTAGE]
        num_valid = np.add.reduce(valid)  # as `sum`, without its detour through Python
        weight = valid / max(num_valid, np.float32(1.0))
        if config.normalize_advantage:
            advantage = advantage - weight.dot(advantage)
            advantage /= np.sqrt(weight.dot(advantage * advantage)) + np.float32(1e-8)
        log_prob, entropy, value = networks.forward(rows.x, rows.action)
        log_ratio = log_prob - rows.columns[_OLD_LOG_PROB]
        if num_valid < len(valid):
            # Before exp: idle rows hold no action's log-density, and infinity times 0 is no number.
            log_ratio = np.where(valid > 0.0, log_ratio, np.float32(0.0))
        ratio = np.exp(log_ratio)
        gain = ratio * advantage
        # Two operations in place of `np.clip`, whose call takes longer than both.
        clipped = np.minimum(np.maximum(ratio, 1.0 - clip_range), 1.0 + clip_range) * advantage
        log_prob_grad = weight * gain
        log_prob_grad *= -(gain <= clipped).astype(np.float32)
        squared, slope = self._value_error(value, rows)
        value_grad = np.float32(config.value_coef) * weight * slope
        entropy_grad = -entropy_coef * weight
        networks.backward(log_prob_grad, entropy_grad, value_grad)
        norm = networks.gradients.clip(config.max_grad_norm)
        networks.step()
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
