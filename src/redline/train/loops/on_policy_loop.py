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
from redline.train.loops.rollout_statistics import RolloutStatistics
from redline.train.settings import RunConfig

_LEARNING = marks.operation("learning")


class OnPolicyLoop(TrainLoop):
    """One run of an on-policy algorithm; further arguments as for `TrainLoop`.

    Args:
        config: all settings of the run.
        statistics: of what is collected; updates that sum their metrics move them on.
    """

    algorithm: OnPolicyAlgorithm

    def __init__(self, config: RunConfig, *, statistics: RolloutStatistics, **parts: Any) -> None:
        super().__init__(config, **parts)
        device = torch.device(config.run.device)
        self._staged = None if device.type == "cpu" else StagedCopies(device)
        self._statistics = statistics

    def _learn(self, rollout: Rollout, collected: int) -> None:
        if self._staged is None and not rollout["reward"].is_cpu:
            rollout = rollout.to("cpu")  # acting and its environments are on a device
        self._statistics.scale_on_the_host(rollout)
        if self._staged is not None:
            rollout = self._staged(rollout)
        self._set_hyperparameters(self.counters.env_steps - collected)
        is_theirs = self._sums is not None  # the update's own
        if not is_theirs:
            rollout = self._statistics.before(rollout)
        with _LEARNING:
            self._updated(rollout)
        if not is_theirs:
            self._statistics.after(rollout)

    def _learning_state(self) -> dict[str, Any]:
        return self._statistics.state_dict()

    def _restore_learning(self, checkpoint: Checkpoint) -> None:
        self._statistics.load_state_dict(checkpoint.state["learning"])

    def _begin_fresh_episodes(self) -> None:
        self._statistics.begin_episodes()
