"""Recorded episodes as rollouts [T, B], as if B environments had just lived them."""

# tensordict ships no types for what indexing gives.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from redline.data import Array, Rollout, as_tensordict, to_tensor
from redline.nested import map_leaves
from redline.offline.episodes import RecordedEpisodes


def as_rollouts(
    episodes: RecordedEpisodes, num_envs: int, *, rows: int = 1024
) -> Iterator[Rollout]:
    """All N steps as ceil(N / B) rows of B columns, some rows at a time.

    The steps are one long chain, cut into B pieces of equal length. A piece may begin and end in
    the middle of an episode: its last row is bootstrapped from the first observation of the next
    piece, which is what came after it. Places beyond the last step are not valid.

    Args:
        episodes: as Redline carries them, with actions as the learner's policy keeps them. Of steps
            whose successor is not known there must be none.
        num_envs: B.
        rows: T of each rollout at most; it bounds the memory that copies take.
    """
    length = -(-episodes.num_steps // num_envs)
    index = np.arange(num_envs * length).reshape(num_envs, length).T
    for first in range(0, length, rows):
        yield _rollout(episodes, index[first : first + rows])


def _rollout(episodes: RecordedEpisodes, index: Array) -> Rollout:
    """The steps [T, B] whose numbers are given; those beyond the last one are not valid."""
    steps, shape = episodes.num_steps, index.shape
    inside = index < steps
    source = np.minimum(index, steps - 1)
    episode = np.searchsorted(episodes.last_steps, source)
    terminated = episodes.terminated[source] & inside
    truncated = episodes.truncated[source] & inside
    ends = terminated | truncated

    def placed(leaf: Array, rows: Array = source, keep: Array = inside) -> Any:
        found = leaf[rows]
        found[~keep] = 0
        return found

    after = index[-1] + 1  # what each column acts on next
    following = np.minimum(after, steps - 1)
    last_obs = map_leaves(lambda leaf: placed(leaf, following, after < steps), episodes.obs)
    entries = {
        "obs": map_leaves(placed, episodes.obs),
        "action": map_leaves(placed, episodes.action),
        "final_obs": map_leaves(lambda leaf: placed(leaf, episode, ends), episodes.final_obs),
        "reward": placed(episodes.reward),
        "terminated": terminated,
        "truncated": truncated,
        "valid": inside,
        "episode_id": np.where(inside, episode, 0),
        "env_id": np.broadcast_to(np.arange(shape[1]), shape).copy(),
    }
    tensors = {name: as_tensordict(to_tensor(tree), shape) for name, tree in entries.items()}
    tensors["bootstrap_value"] = torch.zeros(shape)
    return Rollout(
        steps=TensorDict(tensors, batch_size=list(shape)),
        initial_state={},
        last_obs=to_tensor(last_obs),
    )
