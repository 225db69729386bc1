"""Numbers episodes on where environments begin anew, and would count from 0 again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from redline.data import Rollout
from redline.errors import CorruptCheckpointError


class EpisodeNumbers:
    """Two episodes of a run never share environment and number.

    Args:
        outlives: whether the collector may be replaced by another one, whose memory is its own.
    """

    def __init__(self, *, outlives: bool) -> None:
        self._outlives = outlives
        self._first: Tensor | None = None  # [B] what the collector counts as 0
        self._saved: Tensor | None = None  # [B] the newest numbers
        self._steps: Any = None  # of the rollout where they stand, while its memory is there
        self._ahead: int | None = None  # rollouts made before the environments began anew

    def number(self, rollout: Rollout) -> None:
        """Number the episodes of a rollout, where the collector left it.

        Recorded steps have no numbers, and no episodes that go on.
        """
        if self._ahead is not None:
            if self._ahead == 0 and (newest := self._newest()) is not None:
                self._first = newest + 1
            self._ahead = self._ahead - 1 if self._ahead else None
        if self._first is not None:
            self._count_on(rollout, self._first)
        self._steps = rollout.steps  # looked into when somebody asks: this is each env_step's path
        if self._outlives and (newest := self._newest()) is not None:
            self._saved, self._steps = newest.clone(), None

    def _count_on(self, rollout: Rollout, first: Tensor) -> None:
        ids: Tensor = rollout.steps["episode_id"]
        with torch.inference_mode():
            ids += first.to(ids.device)
        env_id, by_env = int(rollout.steps["env_id"][0, 0]), first.tolist()
        rollout.episodes = [
            replace(each, episode_id=each.episode_id + by_env[each.env_id - env_id])
            for each in rollout.episodes
        ]

    def _newest(self) -> Tensor | None:
        """[B] numbers of the newest rollout; None before the first, and of recorded steps."""
        if self._steps is None:
            return self._saved
        ids = self._steps.get("episode_id", None)
        return None if ids is None else ids[-1]

    def begin_anew(self, ahead: int = 0) -> None:
        """The environments have begun new episodes, and count from 0.

        Args:
            ahead: rollouts still to come that were made before.
        """
        self._ahead = ahead

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs; nothing before the first rollout.

        Whether the environments can be restored only shows when they are.
        """
        newest = self._newest()
        if newest is None:
            return {}
        first = torch.zeros_like(newest) if self._first is None else self._first
        numbers: dict[str, Any] = {"first": first.cpu(), "newest": newest.cpu().clone()}
        return {"episode_numbers": numbers | {"ahead": self._ahead}}

    def load_state_dict(self, state: Mapping[str, Any], num_envs: int) -> None:
        """Go on from there.

        Args:
            state: of a loop; earlier versions saved no numbers.
            num_envs: B.

        Raises:
            CorruptCheckpointError: if the numbers are not of so many environments.
        """
        if "episode_numbers" not in state:
            return
        saved = state["episode_numbers"]
        for name in ("first", "newest"):
            numbers = saved.get(name)
            if not isinstance(numbers, Tensor) or numbers.shape != (num_envs,):
                raise CorruptCheckpointError(
                    f"the state's episode_numbers.{name} is not of {num_envs} environments. "
                    f"Resume from an earlier checkpoint."
                )
        first = saved["first"].long()
        self._first = first if first.any() else None  # by 0 there is nothing to count on
        self._saved = saved["newest"].long()
        self._ahead = saved.get("ahead")
