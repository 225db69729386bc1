"""A rollout's memory row by row, and what a rollout has beside its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.data import Array, EpisodeRecord, map_leaves
from redline.policies.policy import State


class BufferRows:
    """The buffer's memory row by row.

    The views are made once: indexing in the loop would cost more than what is copied.
    """

    def __init__(self, buffer: RolloutBuffer, extras: Mapping[str, tuple[int, ...]]) -> None:
        fields, tensors = buffer.fields, buffer.tensors()
        length = range(buffer.rollout_length)
        self.obs = [map_leaves(lambda leaf, t=t: leaf[t], fields["obs"]) for t in length]
        self.obs_tensors = [map_leaves(lambda leaf, t=t: leaf[t], tensors["obs"]) for t in length]
        self.action = [map_leaves(lambda leaf, t=t: leaf[t], fields["action"]) for t in length]
        self.action_tensors = [
            map_leaves(lambda leaf, t=t: leaf[t], tensors["action"]) for t in length
        ]
        self.extras = {name: tensors[name].unbind(0) for name in extras}
        self.reward: Array = fields["reward"]
        self.terminated: Array = fields["terminated"]
        self.truncated: Array = fields["truncated"]
        self.valid: Array = fields["valid"]
        self.episode_id: Array = fields["episode_id"]


def copy_arrays(target: Any, source: Any) -> None:
    """Copy nested arrays leaf by leaf, of one structure and the same dtypes."""
    if type(target) is np.ndarray:
        target[...] = source
    else:
        map_leaves(lambda into, leaf: np.copyto(into, leaf, casting="same_kind"), target, source)


def copy_tensors(target: Any, source: Any) -> None:
    """Copy nested tensors leaf by leaf, from whatever device."""
    if isinstance(target, Tensor):
        target.copy_(source)
    else:
        map_leaves(lambda into, leaf: into.copy_(leaf), target, source)


class Collected(NamedTuple):
    """What an actor's rollout has beside its rows.

    Attributes:
        initial_state: the recurrent state before the first step.
        episodes: those that ended, each after its row.
        num_running: environments with an episode still to finish.
    """

    initial_state: State
    episodes: list[tuple[int, EpisodeRecord]]
    num_running: int


def in_order(parts: Iterable[Collected]) -> list[EpisodeRecord]:
    """The episodes of all actors in the order in which one actor would have given them."""
    ended = [(row, record) for part in parts for row, record in part.episodes]
    return [record for _, record in sorted(ended, key=lambda e: (e[0], e[1].env_id))]
