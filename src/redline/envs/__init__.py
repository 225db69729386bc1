"""Environments behind one contract, whatever the back end."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redline.envs.atari import PRESETS, AtariPreset
    from redline.envs.backends.backend import Backend
    from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
    from redline.envs.seeding import env_seed, episode_seed
    from redline.envs.settings import EnvSettings, make_device_vec, make_vec
    from redline.envs.vec_env import EnvStep, VecEnv, zeros_like_space

__all__ = [
    "PRESETS",
    "AtariPreset",
    "Backend",
    "DeviceStep",
    "DeviceVecEnv",
    "EnvSettings",
    "EnvStep",
    "VecEnv",
    "env_seed",
    "episode_seed",
    "make_device_vec",
    "make_vec",
    "zeros_like_space",
]

_HOMES = {
    "Backend": "backends.backend",
    "PRESETS": "atari",
    "AtariPreset": "atari",
    "DeviceStep": "device.vec_env",
    "DeviceVecEnv": "device.vec_env",
    "EnvSettings": "settings",
    "EnvStep": "vec_env",
    "VecEnv": "vec_env",
    "env_seed": "seeding",
    "episode_seed": "seeding",
    "make_device_vec": "settings",
    "make_vec": "settings",
    "zeros_like_space": "vec_env",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a worker process needs few, and no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'redline.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"redline.envs.{_HOMES[name]}"), name)
