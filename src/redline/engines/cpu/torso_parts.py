"""Taking a torso apart: the encoder in front, and the layers after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from redline.models.observation_encoder import FlatLeaf, ObservationEncoder


def split_torso(torso: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The encoder of a torso, and the layers after it."""
    parts = list(torso) if isinstance(torso, nn.Sequential) else [torso]
    return parts[0], parts[1:]


def is_fixed(encoder: nn.Module) -> bool:
    """Whether a module has nothing to learn: what it gives is an input like any other."""
    return next(encoder.parameters(), None) is None


def is_vector(encoder: nn.Module, observation_space: spaces.Space[Any]) -> bool:
    """Whether an encoder gives observations of one vector as they are, but for their dtype."""
    if not isinstance(encoder, ObservationEncoder) or len(encoder.leaves) != 1:
        return False
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
        return False
    leaf = encoder.leaves[0]
    return isinstance(leaf, FlatLeaf) and leaf.scale == 1.0


def is_identity(encoder: nn.Module, observation_space: spaces.Space[Any]) -> bool:
    """Whether an encoder gives observations as they are: one vector of float32, not scaled."""
    return observation_space.dtype == np.float32 and is_vector(encoder, observation_space)
