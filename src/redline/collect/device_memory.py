"""The memory of one rollout on a device, and of the episodes that end in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.data import EpisodeRecord, leaves, map_leaves
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv

_KEPT = ("env_id", "episode_id")  # what rows that are not valid keep


class DeviceMemory:
    """[T, B] tensors where the environments are, written row by row.

    Args:
        env: says shapes, dtypes, device and numbers.
        rollout_length: T.
        extras_spec: the policy's extras, name -> trailing shape.

    Attributes:
        steps: the rollout's rows.
        num_rows: how many of them are complete.
    """

    def __init__(
        self, env: DeviceVecEnv, rollout_length: int, extras_spec: Mapping[str, tuple[int, ...]]
    ) -> None:
        shape = (rollout_length, env.num_envs)
        self._first_env_id = env.first_env_id
        self.num_rows = 0
        self.steps: TensorDict = (
            RolloutBuffer.create(*shape, env.observation_space, env.action_space, extras_spec)
            .steps()
            .to(env.device)
        )
        env_ids = torch.arange(env.first_env_id, env.first_env_id + env.num_envs)
        self.steps["env_id"].copy_(env_ids.to(env.device).expand(shape))
        # What `step` gives of finished episodes, until it is read at the end of the rollout.
        self._ended = torch.zeros(shape, dtype=torch.bool, device=env.device)
        self._returns = torch.zeros(shape, dtype=torch.float64, device=env.device)
        self._lengths = torch.zeros(shape, dtype=torch.int64, device=env.device)
        # Made once: indexing in the loop would cost more than what is copied.
        self.rows = [
            {
                name: map_leaves(lambda leaf, t=t: leaf[t], field)
                for name, field in _fields(self.steps)
            }
            for t in range(rollout_length)
        ]

    def begin(self) -> None:
        """Clear what is written only now and then."""
        self.num_rows = 0
        self.steps["bootstrap_value"].zero_()

    def write_step(self, t: int, step: DeviceStep, ended: Tensor) -> None:
        """Keep what the environments gave in row t; `ended` [B] is terminated or truncated."""
        row = self.rows[t]
        for name in ("reward", "terminated", "truncated", "valid", "episode_id"):
            row[name].copy_(getattr(step, name))
        write(row["final_obs"], map_leaves(lambda leaf: _zero_but(ended, leaf), step.final_obs))
        self._ended[t], self._returns[t] = step.episode_ended, step.episode_return
        self._lengths[t] = step.episode_length

    def clear(self, t: int, invalid: Tensor) -> None:
        """Zero the environments `invalid` [B] of row t: they are no transitions."""
        for name, field in self.rows[t].items():
            if name not in _KEPT:
                for _, leaf in leaves(field):
                    leaf.masked_fill_(_like(invalid, leaf), 0)

    def read_episodes(self) -> list[EpisodeRecord]:
        """The finished episodes in the order in which they ended; waits for the device."""
        at = self._ended.nonzero(as_tuple=True)
        parts = (self.steps["episode_id"], self._returns, self._lengths)
        # float64 holds numbers below 2^53 exactly.
        table = torch.stack([at[1].double(), *(part[at].double() for part in parts)])
        return [
            EpisodeRecord(
                env_id=self._first_env_id + int(env),
                episode_id=int(episode),
                return_=total,
                length=int(length),
            )
            for env, episode, total, length in table.t().tolist()
        ]

    def first_rows(self) -> TensorDict:
        """A copy in which only the complete rows are left; the others are zero, not valid."""
        done, steps = self.num_rows, self.steps.clone()
        for name, field in _fields(steps):
            if name != "env_id":
                for _, leaf in leaves(field):
                    leaf[done:] = 0
        return steps


def write(target: Any, source: Any) -> None:
    """Copy nested tensors leaf by leaf, from whatever device."""
    map_leaves(lambda into, leaf: into.copy_(leaf), target, source)


def _fields(steps: TensorDict) -> list[tuple[str, Any]]:
    return [(str(name), steps[name]) for name in steps.keys()]  # noqa: SIM118


def _zero_but(rows: Tensor, leaf: Tensor) -> Tensor:
    """`leaf` [B, ...] with zeros outside of `rows` [B]."""
    return leaf.masked_fill(~_like(rows, leaf), 0)


def _like(mask: Tensor, leaf: Tensor) -> Tensor:
    """[B] as [B, 1, ...] with the dimensions of `leaf`."""
    return mask.view(-1, *([1] * (leaf.dim() - 1)))
