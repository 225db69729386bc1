"""`Backend`: what steps B environments, one class per back end; a user's own is one more.

A back end resets and steps, and writes what came of it into fixed buffers. Checks of
actions and data, episode accounting, lost lives and clipped rewards are the same for all
and sit above it, in `BatchedEnv`. docs/environments.md shows a back end of one's own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv

from redline.envs.games.ids import ORIGINALS, is_native
from redline.envs.spaces.actions import ActionCodec, make_codec
from redline.envs.spaces.layout import labels
from redline.envs.vec_env import zeros_like_space
from redline.errors import ConfigError, EnvDataError, EnvError
from redline.nested import Array, NestedArray, copy_rows, leaves, map_leaves

if TYPE_CHECKING:
    import torch

    from redline.envs.device.vec_env import DeviceVecEnv
    from redline.envs.settings import EnvSettings, EnvSource


@dataclass(slots=True, kw_only=True)
class StepBuffers:
    """The arrays that a back end writes, allocated once.

    Attributes:
        obs: [B, ...] the observation to act on next.
        final_obs: [B, ...] the last observation of an episode that ended in this step,
            meaningless in other rows.
        reward: [B] float64, raw; 0 where not valid.
        terminated: [B] bool, the game ended.
        truncated: [B] bool, the game was cut short.
        valid: [B] bool, false for filler steps and idle environments.
        lives: [B] int32, lives left in the game that goes on; 0 where there are none.
        success: [B] float32, where an episode ended in this step: 1 or 0 as its last info says,
            NaN if that says nothing. Meaningless in other rows.
        info: [B, K] float64, likewise: the K values of the last info that the run logs; NaN for
            those that it does not have.
    """

    obs: NestedArray
    final_obs: NestedArray
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    lives: Array
    success: Array
    info: Array

    @classmethod
    def allocate(cls, space: Space[Any], num_envs: int, num_infos: int = 0) -> StepBuffers:
        """Zeroed buffers of B environments.

        Args:
            space: the observations' carried space.
            num_envs: B.
            num_infos: K, values of the last info that are logged.
        """
        return cls(
            obs=zeros_like_space(space, num_envs),
            final_obs=zeros_like_space(space, num_envs),
            reward=np.zeros(num_envs, dtype=np.float64),
            terminated=np.zeros(num_envs, dtype=np.bool_),
            truncated=np.zeros(num_envs, dtype=np.bool_),
            valid=np.ones(num_envs, dtype=np.bool_),
            lives=np.zeros(num_envs, dtype=np.int32),
            success=np.full(num_envs, np.nan, dtype=np.float32),
            info=np.full((num_envs, num_infos), np.nan, dtype=np.float64),
        )

    def rows(self, begin: int, end: int) -> StepBuffers:
        """Views of the environments begin .. end - 1."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return StepBuffers(
            **{name: map_leaves(lambda leaf: leaf[begin:end], part) for name, part in parts.items()}
        )

    def clear_flags(self) -> None:
        """Set reward and flags to what they are before any step."""
        self.write_outcome(0.0, False, False)
        self.valid[...] = True

    def write_outcome(self, reward: Any, terminated: Any, truncated: Any) -> None:
        """Write [B] rewards, terminations and truncations, or one value for all rows."""
        self.reward[...] = reward
        self.terminated[...] = terminated
        self.truncated[...] = truncated

    def saved(self) -> dict[str, Any]:
        """Copies of what a saved state keeps of the buffers: observations and lives."""
        return {
            "obs": {key: leaf.copy() for key, leaf in leaves(self.obs)},
            "lives": self.lives.copy(),
        }


def success_of(info: Mapping[str, Any]) -> float:
    """1 or 0 as the last info of an episode says, by `is_success` or `success`; NaN if it does not.

    Goal environments and Meta-World use these names.
    """
    said = info.get("is_success", info.get("success"))
    unsaid = said is None or (isinstance(said, (float, np.floating)) and math.isnan(said))
    return math.nan if unsaid else float(bool(said))


def logged_values(info: Mapping[str, Any], names: tuple[str, ...], label: str) -> list[float]:
    """What the last info of an episode says of what is logged; NaN where it says nothing.

    Args:
        info: as the environment gave it.
        names: of the values.
        label: what to call the environment in messages.

    Raises:
        EnvDataError: if a value is not one number.
    """
    values: list[float] = []
    for name in names:
        try:
            values.append(float(info.get(name, math.nan)))
        except (TypeError, ValueError) as error:
            raise EnvDataError(
                f"{label}: info[{name!r}] is {info[name]!r}, and log_info takes means over "
                f"episodes. Report one number at the end of an episode, or leave it out."
            ) from error
    return values


class FillerRows:
    """Marks the rows in which a simulator only reset, one step after an episode's end.

    In such a row it ignored the action: the row is not valid and has no reward. In the
    row before, the observation is both the last of the ended episode and the one that the
    ignored action answers.

    Args:
        buffers: what the back end has just written, with the raw reward and flags.
    """

    def __init__(self, buffers: StepBuffers) -> None:
        self._buffers = buffers
        self._ended = np.zeros(len(buffers.valid), dtype=np.bool_)

    def begin(self) -> None:
        """Start over after a reset of all environments."""
        self._ended[...] = False

    def mark(self) -> bool:
        """Correct the buffers after a step; whether any episode ended in it."""
        buffers, ended = self._buffers, self._ended
        np.logical_not(ended, out=buffers.valid)
        if ended.any():
            for array in (buffers.reward, buffers.terminated, buffers.truncated):
                array[ended] = 0
        np.logical_or(buffers.terminated, buffers.truncated, out=ended)
        if not ended.any():
            return False
        copy_rows(buffers.final_obs, buffers.obs, ended)
        return True


class Backend(ABC):
    """B environments stepped together.

    A subclass has a `name`, an `__init__` that takes what `make` is given and calls
    `allocate`, and `reset` and `step`. The rest has defaults.

    Attributes:
        name: what users call it; also recorded with a saved state.
        threaded: whether it steps in threads of its own, so that this process can do other
            work between `begin_step` and `finish_step`.
        single_envs: whether it steps environments that are made one by one, so that a
            collector's worker processes can step them as well.
        on_device: whether it steps on any device, and `make_on_device` needs no copies.
        can_idle: whether `step` accepts an `active` mask.
        can_step_one: whether there is `step_one`, the shorter way for a batch of one.
        reads_info: whether it fills `buffers.info`.
        options: settings of the run that it uses, of those that not every back end has. A run
            in which nothing uses one refuses it.
        env_id: the name the environments were made from, for messages.
        num_envs: B.
        first_env_id: index of the first of them in the whole batch.
        observation_space: carried space of one environment's observation.
        codec: checks and converts actions.
        buffers: what `reset` and `step` write.
        frame_skip: simulator frames per step.
        info_names: of the values in the last info of an episode that are logged.
        restorable: None, or why the state cannot be saved and restored bit for bit.
    """

    name: ClassVar[str]
    threaded: ClassVar[bool] = False
    single_envs: ClassVar[bool] = False
    on_device: ClassVar[bool] = False
    can_idle: ClassVar[bool] = False
    can_step_one: ClassVar[bool] = False
    reads_info: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ("num_workers", "worker_timeout_s", "check_env")
    env_id: str
    num_envs: int
    first_env_id: int
    observation_space: Space[Any]
    codec: ActionCodec
    buffers: StepBuffers
    frame_skip: int = 1
    info_names: tuple[str, ...] = ()
    restorable: str | None = "its back end cannot save its state"

    @property
    def native_spaces(self) -> tuple[Space[Any], Space[Any]]:
        """One environment's own observation and action space, as it was before it was carried."""
        return self.observation_space, self.codec.space

    # -- what it serves, asked of the class ---------------------------------------------

    @classmethod
    def serves(cls, env: EnvSource) -> bool:
        """Whether `backend="auto"` chooses it for `env`; asked in the registry's order."""
        del env
        return False

    @classmethod
    def check_env(cls, env: EnvSource) -> None:
        """Refuse, when it was asked for by name, an environment that it cannot step.

        By default these are the environments that only one other back end can step.

        Raises:
            ConfigError: with the reason, and what to give instead.
        """
        if isinstance(env, VectorEnv):
            raise ConfigError(
                f"backend={cls.name!r} cannot step a ready {type(env).__name__}. Leave it at "
                f"'auto', or give an id or a callable."
            )
        if is_native(env):
            raise ConfigError(
                f"backend={cls.name!r} cannot step {env!r}, which is written for the device back "
                f"end. Leave it at 'auto', or give {ORIGINALS[str(env)]!r}."
            )

    @classmethod
    def make(cls, settings: EnvSettings, num_envs: int, first_env_id: int) -> Self:
        """The back end of B environments.

        Args:
            settings: what to make; `env` and `env_kwargs` are for the back end to interpret.
            num_envs: B.
            first_env_id: index of the first of them in the whole batch. Environment i is to be
                seeded from (seed, first_env_id + i) alone; see `seeding.env_seed`.
        """
        return cls(settings, num_envs, first_env_id)  # type: ignore[call-arg]

    @classmethod
    def make_on_device(
        cls, settings: EnvSettings, num_envs: int, first_env_id: int, device: torch.device | str
    ) -> DeviceVecEnv:
        """The same environments with tensors on `device`; by default arrays are copied there."""
        from redline.envs.device.mirrored import MirroredEnv

        return MirroredEnv(settings.make(num_envs, first_env_id), device)

    def allocate(
        self,
        env_id: str,
        num_envs: int,
        first_env_id: int,
        observation_space: Space[Any],
        action_space: Space[Any],
    ) -> None:
        """Set the attributes that every back end has, and make its codec and buffers.

        Args:
            env_id: what to call the environments in messages.
            num_envs: B.
            first_env_id: index of the first of them in the whole batch.
            observation_space: as carried; see `spaces.layout.carried_space`.
            action_space: one environment's own.
        """
        self.env_id, self.num_envs, self.first_env_id = env_id, num_envs, first_env_id
        self.observation_space = observation_space
        self.codec = make_codec(action_space, num_envs, labels(env_id, first_env_id))
        self.buffers = StepBuffers.allocate(observation_space, num_envs, len(self.info_names))

    def label(self, index: int) -> str:
        """What to call environment `index` of this batch in messages."""
        return f"{self.env_id}, environment {self.first_env_id + index}"

    # -- stepping -----------------------------------------------------------------------

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere: write `obs` and `lives`.

        Args:
            seed: begins every environment's random stream anew; None goes on with it.
        """

    @abstractmethod
    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step with an encoded `action`, write every buffer, and say whether any episode ended.

        Where one did, `final_obs` has its last observation, and `obs` the first of the next
        episode (or, in a back end that resets on the next step, the same as `final_obs`).
        """

    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """Set the environments off; what steps in this process does so in `finish_step`."""
        self._begun = (action, active)

    def finish_step(self) -> bool:
        """Wait for the step that was begun, and say what `step` says."""
        return self.step(*self._begun)

    def step_one(self, action: NestedArray) -> float | None:
        """Step the only environment, and write its observation if nothing else happened.

        Args:
            action: as for `ActionCodec.encode`.

        Returns:
            The raw reward. None if an episode ended, or there are lives to be counted: then
            nothing is written yet, and `finish_step` does so.
        """
        raise NotImplementedError

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value, from the next step on.

        It is part of the state, so that a restored environment has it, too.

        Args:
            name: of an attribute that the environments or their wrappers have.
            value: plain data.

        Raises:
            ConfigError: if there is no such attribute, or the back end cannot reach it.
        """
        del value
        raise ConfigError(
            f"{self.env_id}: the back end {self.name!r} cannot set the attribute {name!r} of its "
            f"environments. Use env_backend='gymnasium' or 'processes'."
        )

    # -- saving -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The simulators' state: arrays, numbers, strings, lists and dicts.

        Raises:
            EnvError: unless `restorable` is None.
        """
        raise EnvError(f"{self.env_id}: {self.restorable}.")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, with `obs` and `lives` as they were.

        Raises:
            EnvError: if it does not fit or did not reproduce the saved observation.
        """
        del state
        raise EnvError(f"{self.env_id}: {self.restorable}.")

    def close(self) -> None:  # noqa: B027 (most hold nothing but memory)
        """Free what the environments hold."""


class ConcurrentBackend(Backend):
    """A back end whose environments step beside this thread, in threads or processes."""

    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step all, or those in `active`."""
        self.begin_step(action, active)
        return self.finish_step()

    @abstractmethod
    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """Set the environments off."""

    @abstractmethod
    def finish_step(self) -> bool:
        """Wait for them, write every buffer, and say whether any episode ended."""
