"""Recorded episodes as a `Rollout` [T, B], as if B environments had just lived them."""

# tensordict ships no types for what indexing gives.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from redline.data import Array, Rollout, as_tensordict, to_tensor
from redline.nested import map_leaves
from redline.offline.episodes import RecordedEpisodes


def as_rollout(episodes: RecordedEpisodes, num_envs: int) -> Rollout:
    """All N steps as T = ceil(N / B) rows of B columns.

    The steps are one long chain, cut into B pieces of equal length. A piece may begin and end in
    the middle of an episode: its last row is bootstrapped from the first observation of the next
    piece, which is what came after it. Places beyond the last step are not valid.

    Args:
        episodes: as Redline carries them, with actions as the learner's policy keeps them. Of steps
            whose successor is not known there must be none.
        num_envs: B.
    """
    steps = episodes.num_steps
    length = -(-steps // num_envs)
    index = np.arange(num_envs * length).reshape(num_envs, length).T
    inside = index < steps
    source = np.minimum(index, steps - 1)
    episode = np.searchsorted(episodes.last_steps, source)
    terminated = episodes.terminated[source] & inside
    truncated = episodes.truncated[source] & inside
    ends = terminated | truncated

    def placed(leaf: Array, rows: Array = source, keep: Array = inside) -> Any:
        rows = leaf[rows]
        rows[~keep] = 0
        return rows

    after = source[-1] + 1  # the step after each column's last one; none after the whole chain's
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
        "env_id": np.broadcast_to(np.arange(num_envs), (length, num_envs)).copy(),
    }
    shape = (length, num_envs)
    tensors = {name: as_tensordict(to_tensor(tree), shape) for name, tree in entries.items()}
    return Rollout(
        steps=TensorDict(
            {**tensors, "bootstrap_value": torch.zeros(shape)}, batch_size=list(shape)
        ),
        initial_state={},
        last_obs=to_tensor(last_obs),
    )
