"""Episode records, lost lives and clipped rewards, the same for every back end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from redline.data import EpisodeRecord
from redline.envs.backends.backend import StepBuffers
from redline.envs.vec_env import EnvStep
from redline.errors import EnvError
from redline.nested import Array, copy_rows


class EpisodeBook:
    """Turns raw steps into what the learner sees, and keeps the score of the real game.

    A lost life ends the learner's episode (`terminated`) while the game goes on: its
    successor is the next observation, nothing is reset and no `EpisodeRecord` is written.

    Args:
        num_envs: B.
        first_env_id: index of the first of them in the whole batch.
        clip_reward: give the learner the sign of the reward.
        episodic_life: end the learner's episode when a life is lost.
        info_names: of the values in the last info of an episode that are logged.
    """

    def __init__(
        self,
        num_envs: int,
        first_env_id: int,
        *,
        clip_reward: bool,
        episodic_life: bool,
        info_names: tuple[str, ...] = (),
    ) -> None:
        self._info_names = info_names
        self._first_env_id = first_env_id
        self._clip_reward, self._episodic_life = clip_reward, episodic_life
        self._reward = np.zeros(num_envs, dtype=np.float32)
        self._terminated = np.zeros(num_envs, dtype=np.bool_)
        self._return = np.zeros(num_envs, dtype=np.float64)
        # An episode's length is what the clock has moved since its beginning.
        self._clock = 0
        self._began = np.zeros(num_envs, dtype=np.int64)
        self._all_valid = np.ones(num_envs, dtype=np.bool_).tobytes()
        self._episode_id = np.zeros(num_envs, dtype=np.int64)
        self._lives = np.zeros(num_envs, dtype=np.int32)

    def begin(self, lives: Array, *, seeded: bool) -> None:
        """Start over after a reset.

        Episode ids begin at 0 again if it was a seeded one; else an episode that was given
        up in the middle keeps its id, and the new one gets the next.
        """
        self._episode_id += self._clock > self._began
        self._return[...] = 0.0
        self._began[...] = self._clock = 0
        self._lives[...] = lives
        if seeded:
            self._episode_id[...] = 0

    def record(self, buffers: StepBuffers, ended: bool) -> EnvStep:
        """Account for one raw step.

        Args:
            buffers: what the back end wrote.
            ended: whether any episode ended.
        """
        reward = buffers.reward
        self._return += reward
        self._clock += 1
        if buffers.valid.tobytes() != self._all_valid:
            self._began += ~buffers.valid
        if self._clip_reward:
            np.sign(reward, out=self._reward, casting="same_kind")
            reward = self._reward
        elif reward.dtype != np.float32:
            self._reward[:] = reward
            reward = self._reward
        terminated, any_final = buffers.terminated, ended
        if self._episodic_life:
            terminated, any_life_lost = self._lost_lives(buffers)
            any_final = ended or any_life_lost
        return EnvStep(
            buffers.obs,
            reward,
            terminated,
            buffers.truncated,
            buffers.valid,
            buffers.final_obs if any_final else None,
            self._finish(buffers) if ended else [],
        )

    def record_rewards(self, rewards: list[float]) -> Array:
        """Account for steps of the only environment in which nothing else happened.

        Args:
            rewards: raw, one for each step.

        Returns:
            [steps] float32 as the learner sees them.
        """
        raw = np.array(rewards, np.float64)
        seen = (np.sign(raw) if self._clip_reward else raw).astype(np.float32)
        total = float(self._return[0])
        for reward in rewards:  # in the order and the precision of steps one by one
            total += reward
        self._return[0] = total
        self._clock += len(rewards)
        return seen

    def _lost_lives(self, buffers: StepBuffers) -> tuple[Array, bool]:
        ended = buffers.terminated | buffers.truncated
        lost = (buffers.lives < self._lives) & ~ended & buffers.valid
        np.copyto(self._lives, buffers.lives)
        any_lost = bool(lost.any())
        if any_lost:
            copy_rows(buffers.final_obs, buffers.obs, lost)
        np.logical_or(buffers.terminated, lost, out=self._terminated)
        return self._terminated, any_lost

    def _finish(self, buffers: StepBuffers) -> list[EpisodeRecord]:
        rows = np.flatnonzero(buffers.terminated | buffers.truncated)
        records = [
            EpisodeRecord(
                env_id=self._first_env_id + i,
                episode_id=int(self._episode_id[i]),
                return_=float(self._return[i]),
                length=self._clock - int(self._began[i]),
                success=_said(float(buffers.success[i])),
                info=self._logged(buffers, i),
            )
            for i in rows.tolist()
        ]
        self._return[rows] = 0.0
        self._began[rows] = self._clock
        self._episode_id[rows] += 1
        return records

    def _logged(self, buffers: StepBuffers, i: int) -> dict[str, float]:
        """What environment i's last info says of what is logged."""
        if not self._info_names:
            return {}
        said = zip(self._info_names, buffers.info[i].tolist(), strict=True)
        return {name: value for name, value in said if not math.isnan(value)}

    def running(self) -> list[EpisodeRecord]:
        """The episodes under way, as far as they have come."""
        return [
            EpisodeRecord(
                env_id=self._first_env_id + i,
                episode_id=int(self._episode_id[i]),
                return_=float(self._return[i]),
                length=self._clock - int(self._began[i]),
            )
            for i in range(len(self._return))
        ]

    def state_dict(self) -> dict[str, Any]:
        """The running episodes' scores, lengths, ids and lives."""
        return {
            "return": self._return.copy(),
            "length": self._clock - self._began,
            "episode_id": self._episode_id.copy(),
            "lives": self._lives.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            EnvError: if it is of another number of environments.
        """
        mine = self.state_dict()
        for name, array in mine.items():
            if np.shape(state[name]) != array.shape:
                raise EnvError(
                    f"the saved state is of {np.shape(state[name])[0]} environments, this run has "
                    f"{array.shape[0]}. Resume with the same num_envs."
                )
        self._return[...] = state["return"]
        self._clock, self._began[...] = 0, np.negative(state["length"])
        self._episode_id[...] = state["episode_id"]
        self._lives[...] = state["lives"]


def _said(success: float) -> bool | None:
    return None if math.isnan(success) else bool(success)
