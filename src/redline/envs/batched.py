"""`BatchedEnv`: a back end with the layers that all of them share.

From the inside out: action checks, the back end's raw step, data checks, episode
accounting with lost lives and clipped rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from redline.envs.accounting import EpisodeBook
from redline.envs.backends.backend import Backend
from redline.envs.checks import DataChecker
from redline.envs.spaces.layout import labels
from redline.envs.vec_env import EnvStep, VecEnv, refuse_other_state
from redline.errors import ConfigError, EnvError
from redline.nested import Array, NestedArray

if TYPE_CHECKING:
    from redline.data import EpisodeRecord

_STATE_FORMAT = 1


class BatchedEnv(VecEnv):
    """The one `VecEnv` of every back end that runs beside Python.

    Args:
        backend: resets and steps the environments; owned from now on.
        env_id: the name they were made from.
        preset: name of the Atari protocol, None if there is none.
        clip_reward: give the learner the sign of the reward.
        episodic_life: end the learner's episode when a life is lost.
        check: look for NaN and infinity in what the environments return.
    """

    def __init__(
        self,
        backend: Backend,
        env_id: str,
        *,
        preset: str | None = None,
        clip_reward: bool = False,
        episodic_life: bool = False,
        check: bool = True,
    ) -> None:
        self._backend = backend
        self.num_envs, self.env_id, self.preset = backend.num_envs, env_id, preset
        self.backend = backend.name
        self.observation_space = backend.observation_space
        self.action_space = backend.codec.space
        self.frame_skip, self.can_idle = backend.frame_skip, backend.can_idle
        self.first_env_id, self.clips_reward = backend.first_env_id, clip_reward
        label = labels(env_id, backend.first_env_id)
        self._checker = DataChecker(backend.buffers, label) if check else None
        self._book = EpisodeBook(
            backend.num_envs,
            backend.first_env_id,
            clip_reward=clip_reward,
            episodic_life=episodic_life,
            info_names=backend.info_names,
        )
        self._num_steps = 0
        self._alone = backend if backend.can_step_one and backend.num_envs == 1 else None
        self.can_step_quietly = self._alone is not None
        self._unsettled: list[float] = []
        self._has_reset = self._closed = self._is_stepping = False

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the state can be saved and restored bit for bit, else the reason why not."""
        return self._backend.restorable

    @property
    def native_spaces(self) -> tuple[Any, Any]:
        """See `VecEnv.native_spaces`."""
        return self._backend.native_spaces

    def reset(self, seed: int | None = None) -> NestedArray:
        """Start a new episode everywhere; see `VecEnv.reset`."""
        self._refuse_if_closed()
        self._abandon_step()
        self._unsettled.clear()
        self._backend.reset(seed)
        self._num_steps, self._has_reset = 0, True
        buffers = self._backend.buffers
        self._book.begin(buffers.lives, seeded=seed is not None)
        if self._checker is not None:
            self._checker.check_reset()
        return buffers.obs

    def step(self, action: NestedArray, active: Array | None = None) -> EnvStep:
        """Take one step in each environment; see `VecEnv.step`."""
        self.begin_step(action, active)
        return self.finish_step()

    def begin_step(self, action: NestedArray, active: Array | None = None) -> None:
        """Set the environments off; see `VecEnv.begin_step`."""
        if not self._has_reset:
            self._refuse_if_closed()
            raise ConfigError("step() was called before reset(); call reset(seed) first.")
        if active is not None:
            active = self._checked_active(active)
        if self._is_stepping:
            self._abandon_step()
        backend = self._backend
        backend.begin_step(backend.codec.encode(action, active), active)
        self._is_stepping = True

    def finish_step(self) -> EnvStep:
        """Wait for the step that was begun; see `VecEnv.finish_step`."""
        self._is_stepping = False
        ended = self._backend.finish_step()
        self._num_steps += 1
        if self._checker is not None:
            self._checker.check_step(self._num_steps, ended)
        return self._book.record(self._backend.buffers, ended)

    def step_quietly(self, action: NestedArray) -> bool:
        """Step a single environment; see `VecEnv.step_quietly`."""
        if self._alone is None or not self._has_reset or self._is_stepping:
            self.begin_step(action)  # which refuses it, if it is to be refused
            return False
        reward = self._alone.step_one(action)
        if reward is None:
            self._is_stepping = True
            return False
        self._num_steps += 1
        if self._checker is not None:
            self._checker.check_one(self._num_steps, reward)
        self._unsettled.append(reward)
        return True

    def settle(self) -> Array:
        """Account for quiet steps; see `VecEnv.settle`."""
        rewards, self._unsettled = self._unsettled, []
        return self._book.record_rewards(rewards)

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `VecEnv.set_attr`."""
        self._refuse_if_closed()
        self._backend.set_attr(name, value)

    def running(self) -> list[EpisodeRecord]:
        """The episodes under way; see `VecEnv.running`."""
        return self._book.running()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit; see `VecEnv.state_dict`."""
        self._refuse_if_closed()
        if not self._has_reset:
            raise EnvError("there is no state to save before reset(); call reset(seed) first.")
        if self.restorable is not None:
            raise EnvError(f"the state of {self.env_id} cannot be saved: {self.restorable}")
        return {
            "format": _STATE_FORMAT,
            "env_id": self.env_id,
            "backend": self.backend,
            "num_steps": self._num_steps,
            "episodes": self._book.state_dict(),
            "simulators": self._backend.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> NestedArray:
        """Go on from `state`; see `VecEnv.load_state_dict`."""
        self._refuse_if_closed()
        refuse_other_state(state, format=_STATE_FORMAT, env_id=self.env_id, backend=self.backend)
        self._abandon_step()
        self._unsettled.clear()
        self._book.load_state_dict(state["episodes"])
        self._backend.load_state_dict(state["simulators"])
        self._num_steps, self._has_reset = int(state["num_steps"]), True
        return self._backend.buffers.obs

    def close(self) -> None:
        """Free processes, memory and windows."""
        if not self._closed:
            self._closed, self._has_reset = True, False
            self._backend.close()

    def _abandon_step(self) -> None:
        """Wait for a step that nobody waited for: it is not to answer the next question."""
        if self._is_stepping:
            self._is_stepping = False
            self._backend.finish_step()

    def _checked_active(self, active: Array) -> Array:
        if not self.can_idle:
            raise ConfigError(
                f"the {self.backend} back end cannot leave environments idle. Use the "
                f"gymnasium or processes back end to wait for the end of episodes."
            )
        mask = np.asarray(active)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ConfigError(
                f"active must be bool of shape ({self.num_envs},), got {mask.dtype} of shape "
                f"{mask.shape}."
            )
        return mask

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EnvError(f"this {self.env_id} batch is closed; make a new one with make_vec.")
