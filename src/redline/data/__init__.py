"""Rollouts, nested data and masks. Knows torch, numpy and tensordict only."""

from redline.data.episode_table import EpisodeTable
from redline.data.nested import NestedTensor, as_tensordict, to_numpy, to_tensor
from redline.data.rollout import (
    EpisodeRecord,
    Rollout,
    SequenceBatch,
    masked_mean,
    masked_mean_std,
)
from redline.nested import Array, NestedArray, leaves, map_leaves

__all__ = [
    "Array",
    "EpisodeRecord",
    "EpisodeTable",
    "NestedArray",
    "NestedTensor",
    "Rollout",
    "SequenceBatch",
    "as_tensordict",
    "leaves",
    "map_leaves",
    "masked_mean",
    "masked_mean_std",
    "to_numpy",
    "to_tensor",
]
