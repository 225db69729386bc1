"""Episodes as seeds and actions, for simulators that replay exactly but cannot be saved."""

from __future__ import annotations

import numpy as np

from redline.envs.spaces.nested import Array

_GROWTH = 1024


class ActionJournal:
    """Per environment, the actions since its last reset.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._actions = np.zeros((num_envs, _GROWTH), dtype=np.int16)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._rows = np.arange(num_envs)

    def begin(self, rows: Array) -> None:
        """Forget the actions of the environments `rows`, whose episodes ended."""
        self._length[rows] = 0

    def record(self, action: Array) -> None:
        """Add one action [B] per environment."""
        if int(self._length.max()) == self._actions.shape[1]:
            self._actions = np.pad(self._actions, ((0, 0), (0, self._actions.shape[1])))
        self._actions[self._rows, self._length] = action
        self._length += 1

    def state_dict(self) -> dict[str, Array]:
        """The lengths [B], and the actions [B, longest]."""
        longest = int(self._length.max())
        return {"length": self._length.copy(), "actions": self._actions[:, :longest].copy()}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Take over what `state_dict` gave."""
        length, actions = np.asarray(state["length"]), np.asarray(state["actions"])
        width = _GROWTH
        while width < actions.shape[1]:
            width *= 2
        self._actions = np.zeros((len(length), width), dtype=np.int16)
        self._actions[:, : actions.shape[1]] = actions
        self._length = length.astype(np.int64)
