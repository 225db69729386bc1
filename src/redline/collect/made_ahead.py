"""A rollout that workers were asked for before the learner needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from redline.collect.acting_worker import Part
from redline.collect.buffer import RolloutBuffer
from redline.collect.rows import Collected
from redline.data import EpisodeRecord, map_leaves, to_numpy
from redline.errors import ConfigError


@dataclass(slots=True)
class MadeAhead:
    """Under way, or complete as soon as it has `parts`.

    Attributes:
        number: of the rollout, from 1; 0 if it comes from a checkpoint.
        slot: its buffer.
        weights: the weights in shared memory that act; None once they are not needed.
        version: their number.
        parts: the workers' answers.
    """

    number: int
    slot: int
    weights: int | None
    version: int
    parts: list[Part] | None = None

    def to_state(self, buffer: RolloutBuffer) -> dict[str, Any]:
        """All of a complete rollout, for a checkpoint.

        Args:
            buffer: where its rows are.
        """
        if self.parts is None:
            raise ConfigError("a rollout that is not complete was to be saved.")
        return {
            "version": self.version,
            "fields": map_leaves(np.array, buffer.fields),
            "parts": [
                {
                    "initial_state": part.made.initial_state,
                    "episodes": [
                        [row, e.env_id, e.episode_id, e.return_, e.length]
                        for row, e in part.made.episodes
                    ],
                    "num_running": part.made.num_running,
                    "last_obs": part.last_obs,
                }
                for part in self.parts
            ],
        }

    @staticmethod
    def from_state(saved: Mapping[str, Any], slot: int, buffer: RolloutBuffer) -> MadeAhead:
        """What `to_state` gave, with its rows written into `buffer`, which is number `slot`."""
        map_leaves(
            lambda into, leaf: np.copyto(into, np.asarray(leaf)), buffer.fields, saved["fields"]
        )
        parts = []
        for part in saved["parts"]:
            episodes = [
                (row, EpisodeRecord(env_id=i, episode_id=k, return_=r, length=n))
                for row, i, k, r, n in part["episodes"]
            ]
            state = to_numpy(map_leaves(torch.as_tensor, part["initial_state"]))
            made = Collected(state, episodes, part["num_running"])
            parts.append(Part(made, map_leaves(np.asarray, part["last_obs"])))
        return MadeAhead(0, slot, None, saved["version"], parts)
