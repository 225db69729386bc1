"""Action masks in `info`, made part of the observation so that the policy sees them.

An environment may declare a Dict observation with the key "action_mask" itself; such a
one is left alone. One that reports `info["action_mask"]` instead has its observation
turned into {"obs": its own, "action_mask": int8, 1 where the action is allowed}. So has one
with a method `action_masks()`, as sb3-contrib's MaskablePPO wants it, and no mask in `info`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from redline.envs import odd_envs
from redline.envs.layers import own_wrappers
from redline.errors import EnvDataError
from redline.nested import Array

KEY = "action_mask"
METHOD = "action_masks"


# Known to report none, unless a user's wrapper does: no further environment has to be constructed
# to find out.
_WITHOUT_MASKS = (
    "ale_py.",
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.mujoco.",
    "redline.envs.",
)


def find_mask_space(
    env: gymnasium.Env[Any, Any], make_env: Callable[[], gymnasium.Env[Any, Any]]
) -> spaces.Box | None:
    """The space of the masks in `info` or of `action_masks()`; None if there are none.

    Found by resetting another environment that is then closed: one more reset of `env`
    might change its stream.

    Args:
        env: one of the environments, to be left as it is.
        make_env: makes another.
    """
    if isinstance(env.observation_space, spaces.Dict) and KEY in env.observation_space.spaces:
        return None
    if type(env.unwrapped).__module__.startswith(_WITHOUT_MASKS) and not own_wrappers(env):
        return None
    probe = make_env()
    odd_envs.require_distinct([env, probe], type(env.unwrapped).__name__)
    try:
        _, info = odd_envs.reset(probe, 0, type(probe.unwrapped).__name__)
        if KEY in info:
            return mask_space(info[KEY])
        method = mask_method(probe)
        return None if method is None else mask_space(method())
    finally:
        with odd_envs.may_not_leave("close", type(probe.unwrapped).__name__):
            probe.close()


def mask_method(env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """`action_masks` of the outermost wrapper that has it, or of the environment; else None."""
    layer: Any = env
    while not callable(getattr(layer, METHOD, None)):
        if not isinstance(layer, gymnasium.Wrapper):
            return None
        layer = layer.env
    return getattr(layer, METHOD)


def mask_space(mask: Any) -> spaces.Box:
    """The space of masks like this one, as `flat_mask` gives them."""
    return spaces.Box(0, 1, shape=flat_mask(mask).shape, dtype=np.int8)


def flat_mask(mask: Any) -> Array:
    """A mask as one int8 vector; a tuple of masks (MultiDiscrete) is put end to end."""
    if isinstance(mask, (tuple, list)) and len(mask) and np.ndim(mask[0]) > 0:
        return np.concatenate([np.asarray(part, dtype=np.int8).ravel() for part in mask])
    return np.asarray(mask, dtype=np.int8).ravel()


def with_action_mask(env: gymnasium.Env[Any, Any], space: spaces.Box) -> gymnasium.Env[Any, Any]:
    """`env` with the mask of `info` beside its observation."""
    return _ActionMaskObservation(env, space)


class _ActionMaskObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], space: spaces.Box) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"obs": env.observation_space, KEY: space})
        self._method = mask_method(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._merge(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._merge(obs, info), reward, terminated, truncated, info

    def _merge(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if KEY not in info and self._method is not None:
            return {"obs": obs, KEY: flat_mask(self._method())}
        if KEY not in info:
            raise EnvDataError(
                f"{self.env}: info had an {KEY!r} after the first reset but not now. Return it "
                f"from every reset and step, or put it into a Dict observation."
            )
        return {"obs": obs, KEY: flat_mask(info[KEY])}
