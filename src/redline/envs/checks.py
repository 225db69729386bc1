"""Finding NaN and infinity in what environments return, for the whole batch at once."""

from __future__ import annotations

from math import isfinite
from typing import Any, NoReturn

import numpy as np

from redline.envs.backends.backend import StepBuffers
from redline.envs.odd_envs import LARGEST_REWARD, too_large_reward
from redline.envs.spaces.layout import Label
from redline.errors import EnvDataError
from redline.nested import Array, leaves

_LARGEST_WIDE = float(np.finfo(np.float64).max)


class DataChecker:
    """Refuses rewards and float observations that are not finite.

    Args:
        buffers: what the back end writes.
        label: names environment i in messages.
    """

    def __init__(self, buffers: StepBuffers, label: Label) -> None:
        self._label = label
        self._reward = buffers.reward
        self._obs = _float_leaves(buffers.obs)
        self._final_obs = _float_leaves(buffers.final_obs)
        # Overflows where a reward does not fit into float32, which takes no longer than zeros.
        wide = buffers.reward.dtype == np.float64
        self._scale = np.full_like(buffers.reward, _LARGEST_WIDE / LARGEST_REWARD if wide else 0.0)
        self._pairs = [(flat, np.zeros_like(flat)) for _, _, flat in self._obs]
        self._buffers = buffers

    def check_reset(self) -> None:
        """Check the observations of a reset.

        Raises:
            EnvDataError: if one is not finite.
        """
        for key, leaf, _ in self._obs:
            if not np.isfinite(leaf).all():
                self._refuse_obs("observation of reset()", key, leaf, 0)

    def check_step(self, step: int, ended: bool) -> None:
        """Check one step.

        Args:
            step: number of this step since the last reset, from 1.
            ended: whether any episode ended in it.

        Raises:
            EnvDataError: if a reward or an observation is not finite, or a reward does not fit into
                float32.
        """
        if not self._all_finite():
            self._refuse_step(step)
        if ended:
            self._check_final(step)

    def check_one(self, step: int, reward: float) -> None:
        """Check a step of the only environment, of which no more than the observation is written.

        Args:
            step: number of this step since the last reset, from 1.
            reward: raw.

        Raises:
            EnvDataError: if the reward or the observation is not finite.
        """
        try:
            for flat, zeros in self._pairs:
                if not isfinite(flat.dot(zeros)):
                    break
            else:
                if -LARGEST_REWARD <= reward <= LARGEST_REWARD:
                    return
        except RuntimeWarning:
            pass  # see `_all_finite`
        self._reward[0] = reward
        self._refuse_step(step)

    def _all_finite(self) -> bool:
        """Whether the reward and every observation is finite.

        A product with zeros is 0 only if every number is finite, and takes a quarter of the
        time of `isfinite`.
        """
        try:
            if not isfinite(self._reward.dot(self._scale)):
                return False
            return all([isfinite(flat.dot(zeros)) for flat, zeros in self._pairs])
        except RuntimeWarning:
            return False  # numpy remarks on infinity times zero, and warnings may be errors

    def _refuse_step(self, step: int) -> None:
        if not np.isfinite(self._reward).all():
            index = int(np.flatnonzero(~np.isfinite(self._reward))[0])
            raise EnvDataError(
                f"{self._label(index)}, step {step}: the reward is {self._reward[index]}. "
                f"Rewards must be finite; look for a division by zero in the environment."
            )
        sizes = np.abs(self._reward)
        if (sizes > LARGEST_REWARD).any():
            index = int(sizes.argmax())
            raise EnvDataError(
                f"{self._label(index)}, step {step}: {too_large_reward(float(sizes[index]))}"
            )
        for key, leaf, _ in self._obs:
            if not np.isfinite(leaf).all():
                self._refuse_obs("observation", key, leaf, step)

    def _check_final(self, step: int) -> None:
        done = self._buffers.terminated | self._buffers.truncated
        for key, leaf, _ in self._final_obs:
            if not np.isfinite(leaf[done]).all():
                kept = np.where(done.reshape(-1, *([1] * (leaf.ndim - 1))), leaf, 0.0)
                self._refuse_obs("last observation of an episode", key, kept, step)

    def _refuse_obs(self, what: str, key: str, leaf: Array, step: int) -> NoReturn:
        where = tuple(int(n) for n in np.argwhere(~np.isfinite(leaf))[0])
        part = f", key {key!r}" if key else ""
        component = f"[{', '.join(map(str, where[1:]))}]" if where[1:] else ""
        raise EnvDataError(
            f"{self._label(where[0])}, step {step}{part}: the {what}{component} is {leaf[where]}. "
            f"Observations must be finite (and fit into float32); clip or repair them in the "
            f"environment or a wrapper."
        )


def _float_leaves(tree: Any) -> list[tuple[str, Array, Array]]:
    """(key, array, the same memory in one dimension) of each float part."""
    return [(key, leaf, leaf.reshape(-1)) for key, leaf in leaves(tree) if leaf.dtype.kind == "f"]
