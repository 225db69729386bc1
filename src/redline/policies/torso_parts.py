"""Taking a torso apart: the encoder in front, and the layers after it."""

from __future__ import annotations

from torch import nn

from redline.models.observation_encoder import FlatLeaf, ObservationEncoder


def split_torso(torso: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
    """The encoder of a torso, and the layers after it."""
    parts = list(torso) if isinstance(torso, nn.Sequential) else [torso]
    return parts[0], parts[1:]


def is_fixed(encoder: nn.Module) -> bool:
    """Whether a module has nothing to learn: what it gives is an input like any other."""
    return next(encoder.parameters(), None) is None


def is_identity(encoder: nn.Module) -> bool:
    """Whether an encoder gives observations of one vector as they are."""
    if not isinstance(encoder, ObservationEncoder) or len(encoder.leaves) != 1:
        return False
    leaf = encoder.leaves[0]
    return isinstance(leaf, FlatLeaf) and leaf.scale == 1.0
