"""Rewards divided by the running spread of the discounted return.

| rewards lie | scaled by |
|---|---|
| in main memory | `RewardScaler`: numpy, in place |
| on a device that learns | `DeviceRewardScaler`: tensors there, as part of the captured update |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.data import Array, Rollout
from redline.data.ranks import are_several, gather_from_ranks
from redline.policies.normalizer import RunningMoments
from redline.returns.discounted import reverse_scan

_FEW_COLUMNS = 16  # up to here numbers one by one are quicker than rows


class RewardScaler:
    """Keeps value targets near unit scale whatever the environment's rewards are.

    Each environment carries R_t = gamma * R_{t-1} + r_t, started anew with every episode;
    rewards are divided by the standard deviation of all R seen so far (Engstrom et al.
    2020, arXiv:2005.12729, section 3) and clipped. The mean is not subtracted: that would
    change what is optimal. Reported returns are never scaled.

    Args:
        num_envs: B.
        gamma: discount per env_step.
        clip: bound of the scaled reward.
    """

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0) -> None:
        self._gamma, self._clip = gamma, clip
        self._running = np.zeros(num_envs)
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def scale(self, rollout: Rollout) -> None:
        """Take in a rollout's rewards, then scale them in place.

        Args:
            rollout: [T, B] on any device; from another than the CPU, rewards come and go.
        """
        given = rollout["reward"]
        reward, valid = given.cpu().numpy(), rollout.valid.cpu().numpy()
        self._update(self._discounted(reward, rollout.done.cpu().numpy(), valid)[valid])
        np.clip(reward / self.deviation(), -self._clip, self._clip, out=reward)
        if given.device.type != "cpu":  # there, `reward` is the rollout's own memory
            given.copy_(torch.from_numpy(reward))

    def deviation(self) -> float:
        """Standard deviation of the discounted return; 1 before anything was seen."""
        if self._count == 0:
            return 1.0
        return float(np.sqrt(self._squares / self._count + 1e-8))

    def begin_episodes(self) -> None:
        """Forget the episodes under way: the environments have begun new ones."""
        self._running = np.zeros_like(self._running)

    def _discounted(self, reward: Array, done: Array, valid: Array) -> Array:
        """[T, B] discounted return so far of every row."""
        if reward.shape[1] > _FEW_COLUMNS:
            return self._discounted_rows(reward, done, valid)
        columns, gamma = [], self._gamma
        for b, running in enumerate(self._running.tolist()):
            column = []
            rows = zip(
                reward[:, b].tolist(), done[:, b].tolist(), valid[:, b].tolist(), strict=True
            )
            for one, is_done, is_valid in rows:
                if is_valid:
                    running = gamma * running + one
                column.append(running)
                if is_done:
                    running = 0.0
            columns.append(column)
            self._running[b] = running
        return np.array(columns).T

    def _discounted_rows(self, reward: Array, done: Array, valid: Array) -> Array:
        """The same for many environments: row by row."""
        returns = np.zeros(reward.shape)
        running = self._running
        for t in range(len(reward)):
            running = np.where(valid[t], self._gamma * running + reward[t], running)
            returns[t] = running
            running = np.where(done[t], 0.0, running)
        self._running = running
        return returns

    def _update(self, values: Array) -> None:
        """Chan's parallel update of count, mean and sum of squared deviations."""
        mean = float(values.mean()) if len(values) else 0.0
        squares = float(((values - mean) ** 2).sum())
        own = torch.tensor([len(values), mean, squares], dtype=torch.float64)
        for part in gather_from_ranks(own) if are_several() else [own]:
            count, mean, squares = part.tolist()
            self._merge(int(count), mean, squares)

    def _merge(self, count: int, mean: float, squares: float) -> None:
        """Take in the statistics of so many values."""
        if count == 0:
            return
        total = self._count + count
        delta = mean - self._mean
        self._squares += squares + delta * delta * self._count * count / total
        self._mean += delta * count / total
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        """Running returns and their statistics."""
        return {
            "running": self._running.copy(),
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._running = np.array(state["running"])
        self._count, self._mean = int(state["count"]), float(state["mean"])
        self._squares = float(state["squares"])


class DeviceRewardScaler:
    """The same where rewards lie on a device: nothing is read back, and a graph can hold it.

    The returns are a scan of log2(T) steps, so they are those of `RewardScaler` but for rounding.

    Args:
        num_envs: B.
        gamma: discount per env_step.
        device: where rollouts lie; it has doubles.
        clip: bound of the scaled reward.
    """

    def __init__(
        self, num_envs: int, gamma: float, device: torch.device, clip: float = 10.0
    ) -> None:
        self._gamma, self._clip = gamma, clip
        self._running = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._moments = RunningMoments(()).to(device)

    @torch.no_grad()
    def scaled(self, rollout: Rollout) -> Rollout:
        """The rollout with scaled rewards; its own are taken in, and left as they are.

        Args:
            rollout: [T, B].
        """
        reward, done, valid = rollout["reward"], rollout.done, rollout.valid
        returns = self._discounted(reward, done, valid)
        self._running.copy_(returns[-1].masked_fill(done[-1], 0.0))
        self._moments.update(returns, valid)
        deviation = self.deviation().to(reward.dtype)
        return rollout.with_columns(reward=(reward / deviation).clamp(-self._clip, self._clip))

    def deviation(self) -> Tensor:
        """[] standard deviation of the discounted return; 1 before anything was seen."""
        count, squares = self._moments.count, self._moments.squares
        return torch.where(count > 0, (squares / count.clamp(min=1.0) + 1e-8).sqrt(), 1.0)

    def _discounted(self, reward: Tensor, done: Tensor, valid: Tensor) -> Tensor:
        """[T, B] discounted return so far of every row: R_t = decay_t R_{t-1} + reward_t."""
        addend = reward.to(torch.float64).masked_fill(~valid, 0.0)
        decay = torch.full_like(addend, self._gamma).masked_fill(~valid, 1.0)
        first = addend[:1] + decay[:1] * self._running
        addend = torch.cat([first, addend[1:]])
        decay = torch.cat([decay[:1], decay[1:].masked_fill(done[:-1], 0.0)])
        return reverse_scan(addend.flip(0), decay.flip(0)).flip(0)

    def tensors(self) -> dict[str, Tensor]:
        """Name -> the memory of what changes."""
        return {"running": self._running, **self._moments.state_dict()}

    def begin_episodes(self) -> None:
        """Forget the episodes under way: the environments have begun new ones."""
        self._running.zero_()

    def state_dict(self) -> dict[str, Any]:
        """As `RewardScaler.state_dict`, so that a run can go on elsewhere. Waits for the device."""
        return {
            "running": self._running.cpu().numpy(),
            "count": int(self._moments.count),
            "mean": float(self._moments.mean),
            "squares": float(self._moments.squares),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, in place."""
        self._running.copy_(torch.as_tensor(np.array(state["running"])))
        for name in ("count", "mean", "squares"):
            getattr(self._moments, name).fill_(float(state[name]))
