"""A user's own `gymnasium.vector.VectorEnv`, in any of Gymnasium's autoreset modes.

| mode | what is done |
|---|---|
| SAME_STEP | last observations are taken from `info["final_obs"]` |
| NEXT_STEP | the step that only resets is a filler row, not valid |
| DISABLED | ended environments are reset at once with `options={"reset_mask": ...}` |

Its state cannot be saved, since it cannot be known what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from redline.envs.backends.backend import Backend, FillerRows, logged_values
from redline.envs.seeding import env_seed
from redline.envs.single_env import name_of
from redline.envs.spaces.action_mask import KEY, flat_mask, mask_space
from redline.envs.spaces.layout import batch_to_carried, carried_space, labels, make_writer
from redline.errors import ConfigError, EnvDataError
from redline.nested import Array, NestedArray, copy_rows, leaves

if TYPE_CHECKING:
    from redline.envs.settings import EnvSettings, EnvSource


class VectorBackend(Backend):
    """A ready vector environment.

    Args:
        env: owned from now on, and closed with this object.
        num_envs: must be its own number.
        first_env_id: index of its first environment in the whole batch.
        info_names: of the values in the last info of an episode that are logged.

    Raises:
        ConfigError: if the number differs, or it does not say how it resets.
    """

    name = "vector"
    options = ()
    reads_info = True
    restorable = "a vector environment of one's own offers no way to save its state"

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        num_envs: int,
        first_env_id: int,
        info_names: tuple[str, ...] = (),
    ) -> None:
        self._env, self.info_names = env, info_names
        if env.num_envs != num_envs:
            raise ConfigError(
                f"num_envs={num_envs}, but the given {name_of(env)} has {env.num_envs}. Set "
                f"num_envs={env.num_envs}."
            )
        self._mode = _autoreset_mode(env)
        self._native_space = env.single_observation_space
        obs_space = carried_space(self._native_space)
        masks = self._find_mask_space()
        self._has_mask = masks is not None
        if masks is not None:
            obs_space = spaces.Dict({"obs": obs_space, KEY: masks})
        self._native_action_space = env.single_action_space
        self.allocate(name_of(env), num_envs, first_env_id, obs_space, self._native_action_space)
        self._fillers = FillerRows(self.buffers)
        final = _part(self.buffers.final_obs, "obs") if self._has_mask else self.buffers.final_obs
        self._write_final = make_writer(
            self._native_space, final, labels(self.env_id, self.first_env_id)
        )

    @classmethod
    def serves(cls, env: EnvSource) -> bool:
        """Ready vector environments."""
        return isinstance(env, VectorEnv)

    @classmethod
    def check_env(cls, env: EnvSource) -> None:
        """Refuse anything else; see `Backend.check_env`."""
        if not cls.serves(env):
            raise ConfigError(
                f"backend='vector' is for a ready gymnasium.vector.VectorEnv only, not "
                f"{name_of(env)}. Leave it at 'auto'."
            )

    @classmethod
    def make(cls, settings: EnvSettings, num_envs: int, first_env_id: int) -> VectorBackend:
        """The back end around the environment that the settings hold.

        Raises:
            ConfigError: if `env_kwargs` are given: it is made already.
        """
        if settings.env_kwargs:
            raise ConfigError(
                f"env_kwargs {sorted(settings.env_kwargs)} have no effect on a ready "
                f"{type(settings.env).__name__}. Make it with them, or give an id."
            )
        env = cast("VectorEnv[Any, Any, Any]", settings.env)
        return cls(env, num_envs, first_env_id, tuple(settings.log_info))

    def _find_mask_space(self) -> spaces.Box | None:
        """The space of the action masks in `info`; None if there are none."""
        if isinstance(self._native_space, spaces.Dict) and KEY in self._native_space.spaces:
            return None
        _, info = self._env.reset()
        return mask_space(info[KEY][0]) if KEY in info else None

    @property
    def native_spaces(self) -> tuple[Space[Any], Space[Any]]:
        """See `Backend.native_spaces`."""
        return self._native_space, self._native_action_space

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere.

        Gymnasium's own vector environments take a seed per environment; others take one
        number and derive the rest in their own way.
        """
        obs, info = self._env.reset(seed=self._seed_argument(seed))
        self.buffers.clear_flags()
        self._fillers.begin()
        self._write(self.buffers.obs, obs, info)

    def _seed_argument(self, seed: int | None) -> Any:
        if seed is None:
            return None
        if isinstance(self._env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
            return [env_seed(seed, self.first_env_id + i) for i in range(self.num_envs)]
        return env_seed(seed, self.first_env_id)

    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step all."""
        buffers = self.buffers
        native = _as_tuples(self._native_action_space, action)
        obs, reward, terminated, truncated, info = self._env.step(native)
        for name, target, value in (
            ("reward", buffers.reward, reward),
            ("terminated", buffers.terminated, terminated),
            ("truncated", buffers.truncated, truncated),
        ):
            if np.shape(value) != target.shape:
                raise EnvDataError(
                    f"{self.env_id}: {name} has shape {np.shape(value)}, not {target.shape}. "
                    f"Return one number per environment."
                )
            target[...] = value
        self._write(buffers.obs, obs, info)
        self._write_infos(info)
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._fillers.mark()
        ended = buffers.terminated | buffers.truncated
        if not ended.any():
            return False
        if self._mode is AutoresetMode.SAME_STEP:
            self._take_final(ended, info)
        else:
            self._reset_ended(ended)
        return True

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Backend.set_attr`."""
        if not hasattr(self._env, "set_attr"):
            super().set_attr(name, value)
        self._refuse_unsettable(name)
        try:
            self._env.set_attr(name, [value] * self.num_envs)  # type: ignore[attr-defined]
        except AttributeError as error:
            raise ConfigError(
                f"{self.env_id}: the attribute {name!r} cannot be set ({error}). Give it a setter, "
                f"or use another one."
            ) from error

    def _refuse_unsettable(self, name: str) -> None:
        """Look first: Gymnasium's own make an attribute that is not there, or replace a method."""
        inner = self._env.unwrapped
        if not isinstance(inner, (SyncVectorEnv, AsyncVectorEnv)):
            return
        # `get_attr` would call a method.
        if not all(inner.call("has_wrapper_attr", name)):
            raise ConfigError(
                f"{self.env_id} has no attribute {name!r} to set. Give one that the environment "
                f"or one of its wrappers has."
            )
        if isinstance(inner, SyncVectorEnv):
            found = inner.envs[0].get_wrapper_attr(name)
        else:  # in another process a user's own methods cannot be told from data
            found = getattr(gymnasium.Wrapper, name, None)
        if callable(found):
            raise ConfigError(
                f"{self.env_id}: {name!r} is a method, not an attribute to set. Give an attribute "
                f"that holds data."
            )

    def _write_infos(self, info: Mapping[str, Any]) -> None:
        """What the last infos say, which is [B] each, in the rows that `_name` marks."""
        last = info.get("final_info", info)
        if not isinstance(last, Mapping):
            return
        self.buffers.success[...] = self.buffers.info[...] = np.nan
        ended = self.buffers.terminated | self.buffers.truncated
        for column, name in enumerate(self.info_names):
            if name in last:
                rows = ended & np.asarray(last.get(f"_{name}", True), dtype=bool)
                said = np.asarray(last[name])
                for i in np.flatnonzero(rows).tolist():
                    own = {name: said[i] if said.ndim else said}
                    self.buffers.info[i, column] = logged_values(own, (name,), self.label(i))[0]
        for name in ("success", "is_success"):  # the second one counts where both are there
            if name in last:
                # None and NaN say nothing, as for single environments.
                numbers = np.asarray(last[name], dtype=np.float64)
                rows = np.asarray(last.get(f"_{name}", True), dtype=bool) & ~np.isnan(numbers)
                np.copyto(self.buffers.success, (numbers != 0).astype(np.float32), where=rows)

    def _take_final(self, ended: Array, info: Mapping[str, Any]) -> None:
        if "final_obs" not in info:
            raise EnvDataError(
                f"{self.env_id}: an episode ended in the autoreset mode SAME_STEP, but info has no "
                f"'final_obs'. Report the last observation there, or use another mode."
            )
        final, rows = info["final_obs"], np.flatnonzero(ended)
        for i in rows.tolist():
            self._write_final(i, _row(final, i))
        if self._has_mask:
            masks = info.get("final_info", {}).get(KEY)
            # Nobody acts on a last observation, so without a mask everything is allowed.
            for i in rows.tolist():
                _part(self.buffers.final_obs, KEY)[i] = 1 if masks is None else flat_mask(masks[i])

    def _reset_ended(self, ended: Array) -> None:
        copy_rows(self.buffers.final_obs, self.buffers.obs, ended)
        before = {key: leaf.copy() for key, leaf in leaves(self.buffers.obs)}
        obs, info = self._env.reset(options={"reset_mask": ended.copy()})
        self._write(self.buffers.obs, obs, info, rows=ended)
        for key, leaf in leaves(self.buffers.obs):
            leaf[~ended] = before[key][~ended]

    def _write(
        self,
        target: NestedArray,
        obs: Any,
        info: Mapping[str, Any],
        rows: Array | None = None,
    ) -> None:
        if not self._has_mask:
            batch_to_carried(self._native_space, target, obs, self.env_id)
            return
        batch_to_carried(self._native_space, _part(target, "obs"), obs, self.env_id)
        if KEY not in info:
            raise EnvDataError(
                f"{self.env_id}: info had an {KEY!r} after the first reset but not now. Return it "
                f"from every reset and step."
            )
        for i in range(self.num_envs):
            if rows is None or rows[i]:
                _part(target, KEY)[i] = flat_mask(info[KEY][i])

    def close(self) -> None:
        """Leave it open: it belongs to whoever made it, who may evaluate in it afterwards."""


def _autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            f"{name_of(env)} does not say how it resets: metadata['autoreset_mode'] is {mode!r}. "
            f"Set it to a gymnasium.vector.AutoresetMode."
        ) from error


def _row(tree: Any, i: int) -> Any:
    """Environment i's part of final observations, one object each or batched."""
    if isinstance(tree, Mapping):
        return {key: _row(part, i) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_row(part, i) for part in tree)
    return tree[i]


def _part(tree: Any, key: str) -> Any:
    return tree[key]


def _as_tuples(space: Space[Any], action: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _as_tuples(sub, action[key]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_tuples(sub, action[str(n)]) for n, sub in enumerate(space.spaces))
    return action
