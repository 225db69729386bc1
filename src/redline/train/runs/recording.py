"""Recording episodes of a trained agent: `redline collect`."""

# Leaves are arrays of any kind, which no type here can name more closely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from typing import Any

import numpy as np

from redline.envs import VecEnv
from redline.envs.vec_env import EnvStep
from redline.errors import EnvError
from redline.nested import Array, NestedArray, map_leaves
from redline.offline import RecordedEpisodes

_Step = tuple[Any, Any, float, bool, bool]  # obs, action, reward, terminated, truncated


class RecordingEnv(VecEnv):
    """Steps other environments, and keeps every whole episode of theirs.

    An episode is the learner's: where a preset ends it at a lost life, it ends there.

    Args:
        env: owned from now on.
        episodes: how many to keep at most; they are shared out to the environments beforehand, as
            `evaluate` shares them out, so that short episodes make no room for others.
    """

    def __init__(self, env: VecEnv, episodes: int) -> None:
        self._env = env
        for name in (
            "num_envs",
            "env_id",
            "backend",
            "observation_space",
            "action_space",
            "frame_skip",
            "can_idle",
            "preset",
            "clips_reward",
            "first_env_id",
        ):
            setattr(self, name, getattr(env, name))
        self._quota = np.full(env.num_envs, episodes // env.num_envs)
        self._quota[: episodes % env.num_envs] += 1
        self._obs: NestedArray = {}
        self._open: list[list[_Step]] = [[] for _ in range(env.num_envs)]
        self._ended: list[RecordedEpisodes] = []

    @property
    def native_spaces(self) -> tuple[Any, Any]:
        """See `VecEnv.native_spaces`."""
        return self._env.native_spaces

    def recorded(self) -> RecordedEpisodes:
        """All episodes that ended, in that order, as Redline carries them.

        Raises:
            EnvError: if none did.
        """
        if not self._ended:
            raise EnvError("no episode ended, so nothing was recorded. Give more env_steps.")
        return RecordedEpisodes.joined(self._ended)

    def reset(self, seed: int | None = None) -> NestedArray:
        """See `VecEnv.reset`; what was under way is forgotten."""
        obs = self._env.reset(seed)
        self._open = [[] for _ in range(self.num_envs)]
        self._obs = map_leaves(np.copy, obs)
        return obs

    def step(self, action: NestedArray, active: Array | None = None) -> EnvStep:
        """See `VecEnv.step`."""
        taken = map_leaves(np.copy, action)
        step = self._env.step(action, active)
        for i in np.flatnonzero(step.valid & (self._quota > 0)).tolist():
            ends = bool(step.terminated[i]), bool(step.truncated[i])
            obs, act = (_row(tree, i) for tree in (self._obs, taken))
            self._open[i].append((obs, act, float(step.reward[i]), *ends))
            if any(ends):
                self._end(i, _row(step.final_obs, i))
        for record in step.episodes:
            self._quota[record.env_id - self.first_env_id] -= 1
        self._obs = map_leaves(np.copy, step.obs)
        return step

    def _end(self, i: int, final_obs: Any) -> None:
        obs, action, reward, terminated, truncated = zip(*self._open[i], strict=True)
        self._open[i] = []
        self._ended.append(
            RecordedEpisodes(
                obs=_stacked(obs),
                action=_stacked(action),
                reward=np.array(reward, np.float32),
                terminated=np.array(terminated),
                truncated=np.array(truncated) & ~np.array(terminated),
                final_obs=_stacked([final_obs]),
                final_known=np.ones(1, np.bool_),
            )
        )

    def running(self) -> list[Any]:
        """See `VecEnv.running`."""
        return self._env.running()

    def state_dict(self) -> dict[str, Any]:
        """See `VecEnv.state_dict`."""
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> NestedArray:
        """See `VecEnv.load_state_dict`."""
        return self._env.load_state_dict(state)

    def close(self) -> None:
        """See `VecEnv.close`."""
        self._env.close()


def _row(tree: Any, i: int) -> Any:
    return map_leaves(lambda leaf: np.copy(leaf[i]), tree)


def _stacked(rows: Any) -> Any:
    return map_leaves(lambda *leaf: np.stack(leaf), *rows)
