"""Running statistics of rollouts: those that scale rewards, and those that normalize observations.

Rewards are scaled by statistics that hold the rollout's own; observations are normalized by those
of the rollouts before, as they were when acting.

On a device that learns, both are tensors there, and an engine that captures the whole update moves
them on inside its graph (`engines/summed.py`). Otherwise the loop calls `before` and `after` around
the update. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redline.data import Rollout
from redline.devices import kind_of
from redline.policies import Policy
from redline.train.loops.reward_scaling import DeviceRewardScaler, RewardScaler


class RolloutStatistics:
    """What an on-policy run keeps of its rollouts.

    Args:
        policy: what acts and learns; it holds the statistics of observations.
        num_envs: B.
        gamma: discount per env_step; None: rewards are learned from as they are.
        device: where the learner is.
    """

    def __init__(
        self, policy: Policy, num_envs: int, gamma: float | None, device: torch.device
    ) -> None:
        self._policy = policy
        self._near: RewardScaler | None = None
        self._there: DeviceRewardScaler | None = None
        if gamma is None:
            return
        if device.type != "cpu" and kind_of(device).has_float64:
            self._there = DeviceRewardScaler(num_envs, gamma, device)
        else:
            self._near = RewardScaler(num_envs, gamma)

    def scale_on_the_host(self, rollout: Rollout) -> None:
        """Scale rewards in place, where that is done before the rollout goes to the learner."""
        if self._near is not None:
            self._near.scale(rollout)

    def before(self, rollout: Rollout) -> Rollout:
        """The rollout as it is to be learned from, where the learner is."""
        return rollout if self._there is None else self._there.scaled(rollout)

    def after(self, rollout: Rollout) -> None:
        """Take observations in: only now, for acting and learning must see the same statistics."""
        self._policy.update_normalizer(rollout)

    def tensors(self) -> dict[str, Tensor]:
        """Name -> the memory of what changes on the device, beside the policy's own buffers."""
        return {} if self._there is None else self._there.tensors()

    @property
    def _scaler(self) -> RewardScaler | DeviceRewardScaler | None:
        return self._near or self._there

    def begin_episodes(self) -> None:
        """Forget the episodes under way: the environments have begun new ones."""
        if self._scaler is not None:
            self._scaler.begin_episodes()

    def state_dict(self) -> dict[str, Any]:
        """What the policy's state does not hold."""
        return {"reward_scaler": None if self._scaler is None else self._scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; statistics that it lacks begin anew."""
        saved = state["reward_scaler"]
        if self._scaler is not None and saved is not None:  # None: rewards were not scaled then
            self._scaler.load_state_dict(saved)
