"""The on-policy loop: each rollout is learned from once, then thrown away."""

from __future__ import annotations

from typing import Any

import torch

from redline.algos.algorithm import OnPolicyAlgorithm
from redline.data import Rollout
from redline.engines.staged_copies import StagedCopies
from redline.profile import marks
from redline.train.checkpoint.store import Checkpoint
from redline.train.loops.loop import TrainLoop
from redline.train.loops.reward_scaling import RewardScaler
from redline.train.settings import RunConfig

_LEARNING = marks.operation("learning")


class OnPolicyLoop(TrainLoop):
    """One run of an on-policy algorithm; arguments as for `TrainLoop`."""

    algorithm: OnPolicyAlgorithm

    def __init__(self, config: RunConfig, **parts: Any) -> None:
        super().__init__(config, **parts)
        algo, device = config.algo, torch.device(config.run.device)
        self._staged = None if device.type == "cpu" else StagedCopies(device)
        self._scaler = (
            RewardScaler(self.collector.num_envs, algo.gamma)
            if getattr(algo, "scale_reward", False)
            else None
        )

    def _learn(self, rollout: Rollout, collected: int) -> None:
        if self._scaler is not None:
            self._scaler.scale(rollout)
        if self._staged is not None:
            rollout = self._staged(rollout)
        self._set_hyperparameters(self.counters.env_steps - collected)
        with _LEARNING:
            self._updated(rollout)
        # Only now: acting and `evaluate_rollout` must see the same statistics.
        self.algorithm.policy.update_normalizer(rollout)

    def _learning_state(self) -> dict[str, Any]:
        return {"reward_scaler": self._scaler.state_dict() if self._scaler else None}

    def _restore_learning(self, checkpoint: Checkpoint) -> None:
        if self._scaler is not None:
            self._scaler.load_state_dict(checkpoint.state["learning"]["reward_scaler"])

    def _begin_fresh_episodes(self) -> None:
        if self._scaler is not None:
            self._scaler.begin_episodes()
