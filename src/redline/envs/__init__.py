"""Environments behind one contract, whatever the back end."""

from redline.envs.atari import PRESETS, AtariPreset
from redline.envs.make import make_vec
from redline.envs.seeding import env_seed, episode_seed
from redline.envs.settings import BACKENDS, EnvSettings
from redline.envs.vec_env import EnvStep, VecEnv, zeros_like_space

__all__ = [
    "BACKENDS",
    "PRESETS",
    "AtariPreset",
    "EnvSettings",
    "EnvStep",
    "VecEnv",
    "env_seed",
    "episode_seed",
    "make_vec",
    "zeros_like_space",
]
