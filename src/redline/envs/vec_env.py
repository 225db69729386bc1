"""The one kind of environment the rest of Redline knows: a batch of B, stepped together.

Back ends differ in how they reset, what they report and what they can save. An adapter
hides that behind `VecEnv`. Autoreset is normalized here and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from redline.errors import ConfigError, EnvError
from redline.nested import Array, NestedArray

if TYPE_CHECKING:
    from redline.data import EpisodeRecord


class EnvStep(NamedTuple):
    """What one step of B environments gives back; arrays hold until the next call.

    Attributes:
        obs: [B, ...] the observation to act on next (of the new episode where one ended).
        reward: [B] float32, as the learner is to see it (clipped if a preset says so).
        terminated: [B] bool; the learner's episode ended in a terminal state.
        truncated: [B] bool; it was cut short, so its value must be bootstrapped.
        valid: [B] bool; false for a filler step, in which a back end only reset, and for
            an environment that was left idle.
        final_obs: [B, ...] the true last observation in the rows where terminated or
            truncated, undefined in the others; None if no episode ended in this step.
        episodes: the real episodes that ended in this step.
    """

    obs: NestedArray
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    final_obs: NestedArray | None
    episodes: list[EpisodeRecord]


class VecEnv(ABC):
    """B environments of one kind.

    Attributes:
        num_envs: B.
        env_id: the name it was made from, for messages and the run's config.
        backend: name of the back end that steps them.
        observation_space: the space of one environment's observation, as the policy sees it.
        action_space: the space of one environment's action.
        frame_skip: simulator frames per env_step; `frames = env_steps * frame_skip`.
        can_idle: whether `step` accepts an `active` mask.
        restorable: None if the state can be saved and restored bit for bit, else the reason
            why not (resuming then starts fresh episodes and says so).
        preset: name of the Atari protocol in force, None if there is none.
        clips_reward: whether `EnvStep.reward` is the sign of the environment's own.
        can_step_quietly: whether there are `step_quietly` and `settle`.
        first_env_id: index of the first environment in the whole batch; more than 0 where a
            worker holds a part of a bigger one.
    """

    num_envs: int
    env_id: str
    backend: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    frame_skip: int = 1
    can_idle: bool = False
    restorable: str | None = None
    preset: str | None = None
    clips_reward: bool = False
    can_step_quietly: bool = False
    first_env_id: int = 0

    @property
    def native_spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """One environment's own observation and action space.

        They differ from `observation_space` and `action_space` where values are carried in
        another form: float64 as float32, a Tuple as a dict, `start` taken off.
        """
        return self.observation_space, self.action_space

    @abstractmethod
    def reset(self, seed: int | None = None) -> NestedArray:
        """Start a new episode everywhere.

        Args:
            seed: environment i is seeded from (seed, i) alone, so that its stream does not
                depend on how many others there are; None continues the streams.

        Returns:
            [B, ...] the first observations.

        Raises:
            EnvDataError: if an environment returns NaN or the wrong shape or dtype.
        """

    @abstractmethod
    def step(self, action: NestedArray, active: Array | None = None) -> EnvStep:
        """Take one step in each environment.

        Args:
            action: [B, ...] in the action space's structure.
            active: [B] bool, which environments to step; None means all. An idle one keeps
                its observation, and its row is zero and not valid.

        Raises:
            ActionError: if an action lies outside the action space.
            EnvDataError: if a reward or observation is NaN or infinite; names env, step, key.
            ConfigError: if `active` is given and `can_idle` is false.
        """

    def begin_step(self, action: NestedArray, active: Array | None = None) -> None:
        """Set the environments off; `finish_step` gives what `step` would have given.

        Worker processes, and the threads of back ends that have their own, step in between. An
        environment of this thread steps in `finish_step`, which is the default. `action` must
        not change until then.

        Raises:
            ActionError: if an action lies outside the action space.
            ConfigError: if `active` is given and `can_idle` is false.
        """
        self._begun = (action, active)

    def finish_step(self) -> EnvStep:
        """Wait for the step that `begin_step` began; raises as `step` does."""
        action, active = self._begun
        return self.step(action, active)

    def step_quietly(self, action: NestedArray) -> bool:
        """Step a single environment, and account for it later: most steps are like any other.

        Whoever steps quietly calls `settle` before anything else but the next quiet step.

        Args:
            action: [1, ...] in the action space's structure.

        Returns:
            Whether nothing happened but a reward and the next observation, which lies where that
            of the step before did. If not, `settle` and then `finish_step` give all of it.

        Raises:
            ActionError: if the action lies outside the action space.
            EnvDataError: if the reward or the observation is NaN or infinite.
        """
        raise NotImplementedError

    def settle(self) -> Array:
        """Account for the quiet steps since the last call; [steps] float32 their rewards."""
        raise NotImplementedError

    def running(self) -> list[EpisodeRecord]:
        """The episode under way in each environment, with its return and length so far."""
        raise NotImplementedError

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; it is part of the saved state.

        Args:
            name: of an attribute that the environments or their wrappers have.
            value: plain data.

        Raises:
            ConfigError: if there is no such attribute, or the back end cannot reach it.
        """
        del value
        raise ConfigError(
            f"{type(self).__name__} cannot set the attribute {name!r} of its environments."
        )

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit: arrays, numbers, strings, lists, dicts.

        Raises:
            EnvError: if `restorable` is not None.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> NestedArray:
        """Go on from `state`.

        Returns:
            [B, ...] the observations to act on next.

        Raises:
            EnvError: if the state does not fit, or did not reproduce the saved observation.
        """

    @abstractmethod
    def close(self) -> None:
        """Free processes, memory and windows. Calling it twice does no harm."""

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def refuse_other_state(state: Mapping[str, Any], **expected: Any) -> None:
    """Refuse a saved state that is of other environments.

    Args:
        state: as `state_dict` gave it.
        expected: the entries that it must have.

    Raises:
        EnvError: naming the first entry that differs.
    """
    for name, mine in expected.items():
        if state.get(name) != mine:
            raise EnvError(
                f"the saved environment state has {name} {state.get(name)!r}, this one has "
                f"{mine!r}. Resume with the environment and back end of the saved run."
            )


def zeros_like_space(space: gymnasium.Space[Any], *leading: int) -> NestedArray:
    """Zero arrays of a space's structure, shapes and dtypes, with `leading` dimensions."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: zeros_like_space(sub, *leading) for key, sub in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): zeros_like_space(sub, *leading) for i, sub in enumerate(space.spaces)}
    return np.zeros((*leading, *(space.shape or ())), dtype=space.dtype)
