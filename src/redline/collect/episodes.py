"""Episode accounting: which environments run, what their episodes are numbered, which ended.

`ArrayEpisodes` serves environments that give arrays: looking at them is free. The numbers of
`TensorEpisodes` stay on the environments' device until a rollout is over, because looking at
them would wait for the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from redline.data import Array, EpisodeRecord, EpisodeTable
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.envs.vec_env import EnvStep, VecEnv
from redline.errors import ConfigError, CorruptCheckpointError

ResetMode: TypeAlias = Literal["immediate", "wait"]
"""`immediate`: a new episode begins as soon as one ends. `wait`: the environment stays idle,
its rows not valid, until the rollout is over."""
EndedEpisode: TypeAlias = tuple[int, EpisodeRecord]
"""A finished episode, after the number of the row in which it ended."""


def require_idling(backend: str, can_idle: bool, purpose: str) -> None:
    """Refuse what needs environments that can wait for others, where they cannot.

    Args:
        backend: name of the back end that steps them.
        can_idle: whether it can leave some out of a step.
        purpose: what needs it, for the message.

    Raises:
        ConfigError: if it cannot.
    """
    if not can_idle:
        raise ConfigError(
            f"{purpose} needs environments that can stay idle, and the back end {backend!r} steps "
            f"all of them at once. Use env_backend='gymnasium' or 'processes', or "
            f"reset_mode='immediate' without a limit on episodes."
        )


class Episodes(ABC):
    """The episodes of B environments, over all rollouts.

    Args:
        env: the environments.
        reset_mode: what an environment does after its episode ends.

    Attributes:
        active: [B] bool, the environments to step; None: all of them, throughout.
        ids: [B] int64 numbers of the present episodes; None where each step gives them.
        quota: [B] int64, episodes still to finish in each environment; None: no limit.

    Raises:
        ConfigError: if environments should wait but their back end cannot idle.
    """

    def __init__(self, env: VecEnv | DeviceVecEnv, reset_mode: ResetMode) -> None:
        self._env, self._wait = env, reset_mode == "wait"
        if self._wait:
            self._require_idling("reset_mode='wait'")
        self.active: Any = None
        self.ids: Array | None = None
        self.quota: Any = None

    def _require_idling(self, purpose: str) -> None:
        require_idling(self._env.backend, self._env.can_idle, purpose)

    def begin_rollout(self) -> None:
        """Wake the environments that still have episodes to run."""
        self.active = None
        if self.quota is not None:
            self.active = self.quota > 0
        elif self._wait:
            self.active = self._placed(np.ones(self._env.num_envs, np.bool_))

    def limit(self, quota: Array | None) -> bool:
        """Run so many whole episodes from here on, then stay idle.

        Args:
            quota: [B] int64; None: no limit.

        Returns:
            Whether episodes in the middle are given up, so that the caller must reset.

        Raises:
            ConfigError: if the environments cannot idle.
        """
        if quota is None:
            self.quota = None
            return False
        self._require_idling("a number of episodes")
        self.quota = self._placed(quota.astype(np.int64))
        return self._abandon()

    @property
    def num_running(self) -> int:
        """Environments with an episode still to finish; all of them if there is no limit."""
        return self._env.num_envs if self.quota is None else int((self.quota > 0).sum())

    @abstractmethod
    def _placed(self, array: Array) -> Any:
        """`array` where the environments' data are."""

    @abstractmethod
    def _abandon(self) -> bool:
        """Give up the episodes in the middle, whose numbers are not used again."""


class ArrayEpisodes(Episodes):
    """Of environments that give arrays; arguments as for `Episodes`."""

    ids: Array

    def __init__(self, env: VecEnv, reset_mode: ResetMode, first_env_id: int) -> None:
        super().__init__(env, reset_mode)
        self._first_env_id = first_env_id
        self.ids = np.zeros(env.num_envs, np.int64)
        self._in_episode = np.zeros(env.num_envs, np.bool_)
        self._all_in_episode = False  # nearly always so: then there is nothing to update
        self._ended: list[EndedEpisode] = []

    def begin_rollout(self) -> None:
        """See `Episodes`."""
        super().begin_rollout()
        self._ended = []

    def _placed(self, array: Array) -> Array:
        return array

    def _abandon(self) -> bool:
        abandoned = bool(self._in_episode.any())
        self.ids += self._in_episode
        self._in_episode[:] = self._all_in_episode = False
        return abandoned

    def record_step(self, t: int, step: EnvStep) -> None:
        """Account for row t."""
        if not self._all_in_episode:
            self._in_episode |= step.valid
            self._all_in_episode = bool(self._in_episode.all())
        if step.final_obs is None:
            return
        if self._wait and self.active is not None:
            self.active &= ~(step.terminated | step.truncated)
        for record in step.episodes:
            row = record.env_id - self._first_env_id
            self.ids[row] = record.episode_id + 1
            self._in_episode[row] = self._all_in_episode = False
            if self.quota is not None and self.active is not None:
                self.quota[row] -= 1
                self.active[row] &= self.quota[row] > 0
            self._ended.append((t, record))

    def record_quiet_steps(self) -> None:
        """Account for steps in which no episode ended."""
        self._in_episode[:] = self._all_in_episode = True

    def read_ended(self) -> Sequence[EndedEpisode]:
        """The episodes that ended in this rollout."""
        return self._ended

    def state_dict(self) -> dict[str, Any]:
        """Ids, which environments are in an episode, and quotas."""
        return {
            "episode_id": self.ids.copy(),
            "in_episode": self._in_episode.copy(),
            "quota": None if self.quota is None else self.quota.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from there; None: all environments were reset, count from 0."""
        self.ids[:] = 0 if state is None else state["episode_id"]
        self._in_episode[:] = False if state is None else state["in_episode"]
        self._all_in_episode = False
        self.quota = None if state is None else _saved_quota(state["quota"], len(self.ids))


class EndedTable(Sequence[EndedEpisode]):
    """Finished episodes of a rollout, by row and environment.

    Args:
        row: [n] int64, in which each ended.
        episodes: n of them.

    Attributes:
        episodes: as given.
    """

    def __init__(self, row: Array, episodes: EpisodeTable) -> None:
        self._row, self.episodes = row, episodes

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return int(self._row[index]), self.episodes[index]


class TensorEpisodes(Episodes):
    """Of environments that give tensors, which number their episodes themselves.

    Args:
        env: the environments.
        reset_mode: what an environment does after its episode ends.
        episode_id: [T, B] int64, where the rollout keeps the numbers.
    """

    def __init__(self, env: DeviceVecEnv, reset_mode: ResetMode, episode_id: Tensor) -> None:
        super().__init__(env, reset_mode)
        self._device, self._episode_id = env.device, episode_id
        shape = episode_id.shape
        self._has_ended = torch.zeros(shape, dtype=torch.bool, device=env.device)
        self._returns = torch.zeros(shape, dtype=torch.float64, device=env.device)
        self._lengths = torch.zeros(shape, dtype=torch.int64, device=env.device)

    def _placed(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _abandon(self) -> bool:
        env: Any = self._env
        return bool(env.in_episode.any())

    def record_step(self, t: int, step: DeviceStep) -> None:
        """See `ArrayEpisodes`."""
        self._has_ended[t], self._returns[t] = step.episode_ended, step.episode_return
        self._lengths[t] = step.episode_length
        if self.active is None:
            return
        if self._wait:
            self.active = self.active & ~(step.terminated | step.truncated)
        if self.quota is not None:
            self.quota = self.quota - step.episode_ended.long()
            self.active = self.active & (self.quota > 0)

    def read_ended(self) -> Sequence[EndedEpisode]:
        """See `ArrayEpisodes`; one copy from the device holds all of them."""
        env: Any = self._env
        table, records = self._read_table(), env.take_records()
        if not records:
            return table
        known = {(record.env_id, record.episode_id): record for record in records}
        return [(row, known.get((ended.env_id, ended.episode_id), ended)) for row, ended in table]

    def _read_table(self) -> EndedTable:
        at = self._has_ended.nonzero(as_tuple=True)
        parts = (*at, self._episode_id[at], self._returns[at], self._lengths[at])
        # float64 holds numbers below 2^53 exactly.
        table = torch.stack([part.double() for part in parts])
        row, env, episode, total, length = table.cpu().numpy()
        whole = [each.astype(np.int64) for each in (row, env, episode, length)]
        return EndedTable(
            whole[0],
            EpisodeTable(self._env.first_env_id + whole[1], whole[2], total, whole[3]),
        )

    def state_dict(self) -> dict[str, Any]:
        """The quotas; the environments keep the rest."""
        return {"quota": None if self.quota is None else self.quota.cpu()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """See `ArrayEpisodes`."""
        quota = None if state is None else _saved_quota(state["quota"], self._env.num_envs)
        self.quota = None if quota is None else self._placed(quota)


def _saved_quota(saved: Any, num_envs: int) -> Array | None:
    """A quota as a state has it, [B] int64; None: no limit.

    Raises:
        CorruptCheckpointError: if it is anything else.
    """
    if saved is None:
        return None
    quota = np.array(saved)
    if quota.shape != (num_envs,) or quota.dtype != np.int64 or (quota < 0).any():
        raise CorruptCheckpointError(
            f"the state's quota is {str(quota.tolist())[:80]}, and not a number of episodes from 0 "
            f"on for each of {num_envs} environments. Resume from an earlier checkpoint."
        )
    return quota


def in_order(groups: Iterable[Sequence[EndedEpisode]]) -> Sequence[EpisodeRecord]:
    """The episodes of all groups in the order in which a single group would have given them."""
    groups = list(groups)
    if len(groups) == 1 and isinstance(groups[0], EndedTable):
        return groups[0].episodes  # they are in order: rows, and in each its environments
    ended = [episode for group in groups for episode in group]
    return [record for _, record in sorted(ended, key=lambda e: (e[0], e[1].env_id))]
