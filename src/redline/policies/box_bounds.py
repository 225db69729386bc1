"""From actions in [-1, 1] to the bounds of a Box."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.errors import SpaceError


class BoxBounds(nn.Module):
    """Scales actions dimension by dimension; numpy arrays and tensors alike.

    Args:
        space: a Box of float32 or float64 with two finite bounds in each dimension.

    Attributes:
        space: the same.
        shape: of one action.
        size: k, its dimensions.

    Raises:
        SpaceError: if the space is another, or a dimension lacks a bound.
    """

    _low: Tensor
    _high: Tensor
    _center: Tensor
    _half_width: Tensor

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.space = _checked(space)
        self.shape = tuple(int(n) for n in self.space.shape)
        self.size = int(np.prod(self.shape))
        low, high = self.space.low.astype(np.float64), self.space.high.astype(np.float64)
        # Halved before they are added: the distance of two large bounds may be infinite.
        self._center_array, self._half_width_array = high / 2 + low / 2, high / 2 - low / 2
        self._low_array, self._high_array = low, high
        for name, array in (
            ("_low", low),
            ("_high", high),
            ("_center", self._center_array),
            ("_half_width", self._half_width_array),
        ):
            buffer = torch.from_numpy(array.astype(self.space.dtype))
            self.register_buffer(name, buffer, persistent=False)

    def scaled(self, action: Any) -> Any:
        """From [-1, 1] to the bounds, clipped against rounding past them.

        Args:
            action: [..., *shape] numpy array or tensor.

        Returns:
            The same kind, in the space's dtype.
        """
        if isinstance(action, Tensor):
            scaled = self._center + self._half_width * action.to(self._center.dtype)
            return torch.clamp(scaled, self._low, self._high)
        scaled = self._half_width_array * action
        scaled += self._center_array
        np.maximum(scaled, self._low_array, out=scaled)
        np.minimum(scaled, self._high_array, out=scaled)
        # Rounding to the space's dtype cannot pass its bounds, which are of that dtype.
        return scaled.astype(self.space.dtype, copy=False)


def _checked(space: spaces.Space[Any]) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise SpaceError(
            f"actions in [-1, 1] can only be scaled to a Box, but the action space is {space}. "
            f"Use an algorithm for this space: dqn, sac or ppo for Discrete, ppo for others."
        )
    if space.dtype not in (np.float32, np.float64):
        raise SpaceError(
            f"the action space {space} is a Box of {space.dtype}; only Boxes of float32 and "
            f"float64 can be served. Use gymnasium.wrappers.TransformAction for another "
            f"precision, or ppo with a MultiDiscrete space for whole numbers."
        )
    if int(np.prod(space.shape)) == 0:
        raise SpaceError(f"the action space {space} has no dimensions. Give it at least one.")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise SpaceError(
            f"the action space {space} has an infinite bound, and actions in [-1, 1] cannot be "
            f"scaled to it. Wrap the environment so that all bounds are finite, or use ppo."
        )
    if (space.low > space.high).any():
        raise SpaceError(
            f"the action space {space} has a lower bound above the upper one. Exchange them."
        )
    return space
