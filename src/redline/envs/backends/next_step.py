"""Filler rows of simulators that reset on the step after an episode's end."""

from __future__ import annotations

import numpy as np

from redline.envs.backends.backend import StepBuffers
from redline.envs.spaces.nested import copy_rows


class FillerRows:
    """Marks the rows in which a simulator only reset.

    In such a row it ignored the action: the row is not valid and has no reward. In the
    row before, the observation is both the last of the ended episode and the one that the
    ignored action answers.

    Args:
        buffers: what the back end has just written, with the raw reward and flags.
    """

    def __init__(self, buffers: StepBuffers) -> None:
        self._buffers = buffers
        self._ended = np.zeros(len(buffers.valid), dtype=np.bool_)

    def begin(self) -> None:
        """Start over after a reset of all environments."""
        self._ended[...] = False

    def mark(self) -> bool:
        """Correct the buffers after a step; whether any episode ended in it."""
        buffers, ended = self._buffers, self._ended
        np.logical_not(ended, out=buffers.valid)
        if ended.any():
            for array in (buffers.reward, buffers.terminated, buffers.truncated):
                array[ended] = 0
        np.logical_or(buffers.terminated, buffers.truncated, out=ended)
        if not ended.any():
            return False
        copy_rows(buffers.final_obs, buffers.obs, ended)
        return True
