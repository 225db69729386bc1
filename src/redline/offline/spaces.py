"""Values as an environment has them, and as Redline carries them.

A data set holds what the environment gave and took: float64, `start` included, tuples. Rollouts
and replay hold what `envs/spaces/layout.py` describes: float32, zero-based, dicts.
"""

# Leaves are arrays of any kind, which no type here can name more closely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from redline.envs import VecEnv
from redline.envs.spaces.layout import carried_space, offset_of
from redline.errors import ConfigError
from redline.nested import Array, NestedArray, map_leaves
from redline.offline.episodes import RecordedEpisodes
from redline.previous_inputs import has_previous

_CLOSE = 1e-5  # how far float32 may carry an action over a bound, as a part of the bounds' distance


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedSpaces:
    """The spaces of a data set's observations and actions.

    Attributes:
        obs: as the data hold them.
        action: likewise.
        clips_reward: whether learners of this environment see the sign of rewards only.
    """

    obs: Space[Any]
    action: Space[Any]
    clips_reward: bool = False

    @classmethod
    def of(cls, env: VecEnv) -> CarriedSpaces:
        """The spaces of an environment's data.

        Where the policy sees more than the environment gives, such as an action mask from `info`,
        the data hold what the policy sees.

        Raises:
            ConfigError: if it also sees the action before, which no data set holds.
        """
        if has_previous(env.observation_space):
            raise ConfigError(
                "observe_previous=True does not go with recorded data, which hold no action before "
                "each observation. Leave one of the two out."
            )
        native_obs, native_action = env.native_spaces
        is_same = carried_space(native_obs) == env.observation_space
        return cls(
            obs=native_obs if is_same else env.observation_space,
            action=native_action,
            clips_reward=env.clips_reward,
        )

    def carried(self, episodes: RecordedEpisodes, source: str) -> RecordedEpisodes:
        """The same episodes as Redline carries them.

        Args:
            episodes: as an environment has them.
            source: where they come from, for messages.

        Raises:
            ConfigError: naming what does not fit the spaces.
        """
        reward = np.sign(episodes.reward) if self.clips_reward else episodes.reward
        return replace(
            episodes,
            obs=_carried(episodes.obs, self.obs, f"{source}: observations"),
            action=_carried(episodes.action, self.action, f"{source}: actions", bounded=True),
            final_obs=self._carried_final(episodes, source),
            reward=reward,
        )

    def _carried_final(self, episodes: RecordedEpisodes, source: str) -> NestedArray:
        """The last observations that are known, and zeros in place of the others."""
        known, name = episodes.final_known, f"{source}: last observations"

        def spread(leaf: Array) -> Array:
            whole = np.zeros((len(known), *leaf.shape[1:]), leaf.dtype)
            whole[known] = leaf
            return whole

        there = map_leaves(lambda leaf: leaf[known], episodes.final_obs)
        return map_leaves(spread, _carried(there, self.obs, name))

    def native(self, episodes: RecordedEpisodes) -> RecordedEpisodes:
        """The inverse of `carried`, in float32 and with dicts in place of tuples."""
        return replace(
            episodes,
            obs=_native(episodes.obs, self.obs),
            action=_native(episodes.action, self.action),
            final_obs=_native(episodes.final_obs, self.obs),
        )

    @property
    def written(self) -> tuple[Space[Any], Space[Any]]:
        """The spaces of what `native` gives: float32, and dicts in place of tuples."""
        return _written(self.obs), _written(self.action)


def _carried(value: Any, space: Space[Any], name: str, *, bounded: bool = False) -> NestedArray:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(_parts(space))
        if not hasattr(value, "keys") or set(value) != set(parts):
            got = sorted(value) if hasattr(value, "keys") else "one array"
            raise ConfigError(
                f"{name} hold {got}, and the environment's space has the parts {sorted(parts)}. "
                f"Name them alike."
            )
        return {
            key: _carried(value[key], sub, f"{name} {key!r}", bounded=bounded)
            for key, sub in parts.items()
        }
    if hasattr(value, "keys"):
        raise ConfigError(f"{name} hold {sorted(value)}, and the environment's space is {space}.")
    return _carried_leaf(value, space, name, bounded)


def _carried_leaf(value: Array, space: Space[Any], name: str, bounded: bool) -> Array:
    carried = carried_space(space)
    shape = (len(value), *(carried.shape or ()))
    same_kind = np.can_cast(value.dtype, carried.dtype or np.int64, casting="same_kind")
    is_shaped = value.shape == shape or (value.size == len(value) == int(np.prod(shape)))
    if not same_kind or not is_shaped:
        raise ConfigError(
            f"{name} are {value.dtype} of shape {value.shape[1:]} a step, and the environment's "
            f"space is {space}. Convert them, or give the environment that they were recorded in."
        )
    value = value.reshape(shape)
    _require_finite(value, value, name, "Remove it.")
    start = offset_of(space)
    value = value - start if np.any(start) else value
    if isinstance(carried, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        _require_range(value, *_whole_bounds(carried), name, space, start)
    elif bounded and isinstance(carried, spaces.Box):
        value = _clipped(value, carried, name)
    elif np.issubdtype(carried.dtype, np.integer):
        limits: Any = np.iinfo(carried.dtype)
        _require_range(value, limits.min, limits.max, name, space, start)
    with np.errstate(over="ignore"):  # said below
        found = value.astype(carried.dtype, copy=False)
    _require_finite(found, value, name, f"{found.dtype} cannot hold it. Scale it, or remove it.")
    return np.ascontiguousarray(found)


def _require_finite(value: Array, shown: Array, name: str, advice: str) -> None:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        step = int(np.argwhere(~np.isfinite(value))[0][0])
        raise ConfigError(f"{name} hold {shown[step]} in row {step}. {advice}")


def _whole_bounds(space: Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Discrete):
        return 0, int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        return 0, space.nvec - 1
    return 0, 1


def _require_range(
    value: Array, low: Any, high: Any, name: str, space: Space[Any], start: Any
) -> None:
    outside = (value < low) | (value > high)
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        raise ConfigError(
            f"{name} hold {value[row] + start} in row {row}, which the environment's space "
            f"{space} does not. Give the environment that they were recorded in."
        )


def _clipped(value: Array, space: spaces.Box, name: str) -> Array:
    """Within the bounds, if it is but for rounding."""
    width = space.high.astype(np.float64) - space.low.astype(np.float64)
    slack = _CLOSE * np.where(np.isfinite(width), width, 1.0)
    outside = (value < space.low - slack) | (value > space.high + slack)
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        raise ConfigError(
            f"{name} hold {value[row]} in row {row}, outside the bounds of {space}. If the "
            f"environment clipped them, store what it took: np.clip(actions, low, high)."
        )
    return np.clip(value, space.low, space.high)


def _native(value: Any, space: Space[Any]) -> NestedArray:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return {key: _native(value[key], sub) for key, sub in _parts(space)}
    start = offset_of(space)
    return value + start if np.any(start) else value


def _written(space: Space[Any]) -> Space[Any]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return spaces.Dict({key: _written(sub) for key, sub in _parts(space)})
    return carried_space(space) if isinstance(space, spaces.Box) else space


def _parts(space: spaces.Dict | spaces.Tuple) -> Iterator[tuple[str, Space[Any]]]:
    """The names and spaces of the parts; those of a Tuple are "0", "1", ..."""
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, sub in items:
        yield str(key), sub
