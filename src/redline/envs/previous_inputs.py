"""Any `VecEnv` whose observations also hold the action before and its reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from redline.envs.vec_env import EnvStep, VecEnv
from redline.errors import EnvError
from redline.nested import Array, NestedArray
from redline.previous_inputs import ACTION, PLAIN, REWARD, ActionColumns, with_previous

if TYPE_CHECKING:
    from redline.data import EpisodeRecord


class PreviousInputs(VecEnv):
    """Puts the action before and its reward beside every observation.

    An observation o of step t + 1 comes with the action a and the reward r of step t:

    | observation | action, reward |
    |---|---|
    | the first of an episode, whoever reset it | zeros |
    | the next one, o | a, r |
    | the true last one of an episode | the last a, r |
    | the one after a lost life that ends the learner's episode | zeros |
    | what a back end shows in a filler row, and after it | zeros |
    | that of an idle environment | as it was |

    So a policy that reads them sees the same when it acts, when it learns from rollouts or
    replay, and when it is evaluated, whatever collects.

    Args:
        env: owned from now on.

    Raises:
        SpaceError: if the observation has entries of these names itself.
    """

    def __init__(self, env: VecEnv) -> None:
        self._env = env
        self.num_envs, self.env_id, self.backend = env.num_envs, env.env_id, env.backend
        self._space = with_previous(env.observation_space, env.action_space)
        self.observation_space = self._space
        self.action_space, self.preset = env.action_space, env.preset
        self.frame_skip, self.can_idle = env.frame_skip, env.can_idle
        self.first_env_id, self.clips_reward = env.first_env_id, env.clips_reward
        self._columns = ActionColumns(env.action_space)
        self._now, self._taken = self._zeros(), self._zeros()
        self._begun: tuple[NestedArray, Array | None]

    def _zeros(self) -> dict[str, Array]:
        return {
            ACTION: np.zeros((self.num_envs, self._columns.size), np.float32),
            REWARD: np.zeros((self.num_envs, 1), np.float32),
        }

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return self._env.restorable

    @property
    def native_spaces(self) -> tuple[Any, Any]:
        """See `VecEnv.native_spaces`."""
        return self._env.native_spaces

    def reset(self, seed: int | None = None) -> NestedArray:
        """Start a new episode everywhere; see `VecEnv.reset`."""
        obs = self._env.reset(seed)
        for leaf in self._now.values():
            leaf.fill(0.0)
        return joined(obs, self._now, self._space)

    def step(self, action: NestedArray, active: Array | None = None) -> EnvStep:
        """Take one step in each environment; see `VecEnv.step`."""
        self.begin_step(action, active)
        return self.finish_step()

    def begin_step(self, action: NestedArray, active: Array | None = None) -> None:
        """Set the environments off; see `VecEnv.begin_step`."""
        self._env.begin_step(action, active)
        self._begun = (action, active)

    def finish_step(self) -> EnvStep:
        """Wait for the step that was begun; see `VecEnv.finish_step`."""
        step = self._env.finish_step()
        action, active = self._begun
        self._columns.write(self._taken[ACTION], action)
        self._taken[REWARD][:, 0] = step.reward
        begins = step.terminated | step.truncated | ~step.valid
        if active is not None:
            begins &= active
        for name, leaf in self._now.items():
            stepped = True if active is None else active[:, None]
            np.copyto(leaf, self._taken[name], where=stepped)
            leaf[begins] = 0.0
        final_obs = step.final_obs
        if final_obs is not None:
            final_obs = joined(final_obs, self._taken, self._space)
        seen = joined(step.obs, self._now, self._space)
        return step._replace(obs=seen, final_obs=final_obs)

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `VecEnv.set_attr`."""
        self._env.set_attr(name, value)

    def running(self) -> list[EpisodeRecord]:
        """The episodes under way; see `VecEnv.running`."""
        return self._env.running()

    def state_dict(self) -> dict[str, Any]:
        """The environments' own state, and the actions and rewards before."""
        return {
            "env": self._env.state_dict(),
            **{name: leaf.copy() for name, leaf in self._now.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> NestedArray:
        """Go on from `state`; see `VecEnv.load_state_dict`."""
        refuse_without_previous(state, self.env_id)
        obs = self._env.load_state_dict(state["env"])
        for name, leaf in self._now.items():
            leaf[...] = state[name]
        return joined(obs, self._now, self._space)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def joined(obs: Any, previous: dict[str, Any], space: spaces.Dict) -> dict[str, Any]:
    """An observation and what precedes it, in the order of their space; nothing is copied.

    Args:
        obs: as carried, without the two.
        previous: the two.
        space: what `with_previous` made, which may sort its entries.
    """
    parts = {**obs, **previous} if hasattr(obs, "keys") else {PLAIN: obs, **previous}
    return {key: parts[key] for key in space.spaces}


def refuse_without_previous(state: Any, env_id: str) -> None:
    """Refuse a saved state of environments that showed no previous action.

    Raises:
        EnvError: if it is one.
    """
    if not {"env", ACTION, REWARD} <= set(state):
        raise EnvError(
            f"the saved environment state of {env_id} holds no previous action and reward. Resume "
            f"with the observe_previous of the saved run."
        )
