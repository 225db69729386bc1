"""The memory of one rollout: numpy arrays beside the environments, seen by torch as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict

from redline.data import Array, NestedArray, as_tensordict, leaves, map_leaves
from redline.devices import kind_of
from redline.nested import pairs

Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Ordinary memory; pages that are never written cost nothing."""
    return np.zeros(shape, dtype)


def pinned_zeros(device: torch.device | str) -> Allocate:
    """Memory that a device copies from and to while the host goes on, if it is such a device."""
    kind = kind_of(device)
    if not kind.pins:
        return zeros
    return lambda shape, dtype: kind.pinned(torch.from_numpy(zeros(shape, dtype))).numpy()


def allocate_space(
    space: gymnasium.Space[Any], leading: tuple[int, ...], allocate: Allocate
) -> NestedArray:
    """Arrays of a space's structure with `leading` dimensions; float64 becomes float32."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {k: allocate_space(sub, leading, allocate) for k, sub in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {
            str(i): allocate_space(sub, leading, allocate) for i, sub in enumerate(space.spaces)
        }
    dtype = np.dtype(space.dtype)
    if dtype == np.float64:
        dtype = np.dtype(np.float32)
    return allocate((*leading, *(space.shape or ())), dtype)


class RolloutBuffer:
    """Arrays [T, B, ...] of a rollout, allocated once and written row by row.

    Args:
        fields: name -> nested arrays [T, B, ...]; made by `create`, or a part by `columns`.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.rollout_length, self.num_envs = fields["reward"].shape
        self._rows_with_final_obs: list[int] = []

    @classmethod
    def create(
        cls,
        rollout_length: int,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        extras_spec: Mapping[str, tuple[int, ...]],
        allocate: Allocate = zeros,
    ) -> RolloutBuffer:
        """Allocate a buffer.

        Args:
            rollout_length: T.
            num_envs: B.
            observation_space: of one environment, as `VecEnv` gives it.
            action_space: of one environment.
            extras_spec: the policy's extras, name -> trailing shape, float32.
            allocate: (shape, dtype) -> zeros; shared memory for worker processes.
        """
        leading = (rollout_length, num_envs)
        fields: dict[str, Any] = {
            "obs": allocate_space(observation_space, leading, allocate),
            "action": allocate_space(action_space, leading, allocate),
            "final_obs": allocate_space(observation_space, leading, allocate),
        }
        for name in ("reward", "bootstrap_value"):
            fields[name] = allocate(leading, np.dtype(np.float32))
        for name in ("terminated", "truncated", "valid"):
            fields[name] = allocate(leading, np.dtype(np.bool_))
        for name in ("env_id", "episode_id"):
            fields[name] = allocate(leading, np.dtype(np.int64))
        for name, shape in extras_spec.items():
            fields[name] = allocate((*leading, *shape), np.dtype(np.float32))
        return cls(fields)

    def columns(self, start: int, stop: int) -> RolloutBuffer:
        """The part of environments start .. stop - 1, in the same memory."""
        return RolloutBuffer(
            {name: map_leaves(lambda a: a[:, start:stop], f) for name, f in self.fields.items()}
        )

    def tensors(self) -> dict[str, Any]:
        """The same memory as (nested) tensors."""
        return {name: map_leaves(torch.from_numpy, field) for name, field in self.fields.items()}

    def steps(self) -> TensorDict:
        """The same memory as a TensorDict [T, B]."""
        shape = (self.rollout_length, self.num_envs)
        return TensorDict(
            {name: as_tensordict(field, shape) for name, field in self.tensors().items()},
            batch_size=list(shape),
        )

    def begin(self) -> None:
        """Clear what is written only now and then."""
        self.fields["bootstrap_value"].fill(0.0)
        for t in self._rows_with_final_obs:
            for _, leaf in leaves(self.fields["final_obs"]):
                leaf[t] = 0
        self._rows_with_final_obs.clear()

    def write_final_obs(self, t: int, final_obs: NestedArray, ended: Array) -> None:
        """Keep the true last observations of row t where an episode ended."""
        for target, source in pairs(self.fields["final_obs"], final_obs):
            target[t][ended] = source[ended]
        self._rows_with_final_obs.append(t)

    def clear_envs(self, t: int, rows: Array) -> None:
        """Zero the rows [B] bool of step t in every field: they are not valid."""
        for name, field in self.fields.items():
            if name not in ("env_id", "episode_id"):
                for _, leaf in leaves(field):
                    leaf[t][rows] = 0

    def clear_from(self, t: int) -> None:
        """Zero all rows from step t on: nothing was stepped there."""
        for name, field in self.fields.items():
            if name not in ("env_id", "episode_id"):
                for _, leaf in leaves(field):
                    leaf[t:] = 0

    def clear_final_obs(self) -> None:
        """Zero all true last observations, those that another process wrote included."""
        for _, leaf in leaves(self.fields["final_obs"]):
            leaf[...] = 0
        self._rows_with_final_obs.clear()

    def first_rows(self, num_rows: Array) -> TensorDict:
        """A copy in which only the first rows of each environment are left.

        Args:
            num_rows: [B] int64; later rows are zero, so not valid; env_id stays.
        """
        kept = np.arange(self.rollout_length)[:, None] < num_rows

        def copied(leaf: Array) -> Array:
            return np.where(kept.reshape(*kept.shape, *([1] * (leaf.ndim - 2))), leaf, 0)

        fields = {
            name: field if name == "env_id" else map_leaves(copied, field)
            for name, field in self.fields.items()
        }
        return RolloutBuffer(fields).steps()
