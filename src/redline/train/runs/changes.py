"""Settings that a resumed run goes on with instead of its own: `--resume RUN --set NAME=VALUE`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from redline.engines.engine import ASKED_FOR
from redline.errors import ConfigError
from redline.train.settings import RunConfig

_OF_THE_RUN = frozenset(
    (
        "total_env_steps",
        "device",
        "policy_device",
        "env_device",
        "eval_device",
        "accelerate",
        "worker_timeout_s",
        "num_threads",
        "self_check",
        "log_interval",
        "checkpoints",
        "checkpoint_interval",
        "checkpoint_gap",
        "eval_interval",
        "eval_async",
        "eval_episodes",
        "eval_max_episode_steps",
        "stop_at_return",
        "on_divergence",
        "tensorboard",
        "jsonl",
        "wandb",
        "quiet",
        "name",
        "tags",
    )
)
"""Those that what is saved does not depend on."""
_OF_THE_DATA = frozenset(
    (
        "num_envs",
        "rollout_length",
        "n_step",
        "replay_size",
        "replay",
        "replay_storage",
        "replay_frame_stack",
        "prioritized",
    )
)
"""Hyperparameters that say what the saved environments and replay look like."""

_OF_THE_START = frozenset(("initial_alpha", "noisy_std"))
"""Hyperparameters that only say what a run begins with."""


def changed_config(
    config: RunConfig, changes: Mapping[str, Any], why_engine: str | None = None
) -> RunConfig:
    """The settings that a resumed run goes on with.

    On another kind of device the engine is chosen anew, unless it was the caller's choice and runs
    on any. Which it was `accelerate` does not say: it holds what `auto` chose.

    Args:
        config: its own.
        changes: flat name -> new value.
        why_engine: why updates run as `accelerate` says, as the run recorded it.

    Raises:
        ConfigError: if a setting is unknown, wrong, or what is saved depends on it.
    """
    new = config.replace(**changes)
    moves = device_type(new) != device_type(config)
    engine = config.run.accelerate
    stays = engine == "compile" or (engine == "eager" and why_engine == ASKED_FOR)
    if moves and "accelerate" not in changes and not stays:
        new = new.replace(accelerate="auto")
    fixed = {f.name for f in dataclasses.fields(config.run)} - _OF_THE_RUN
    fixed |= {f.name for f in dataclasses.fields(config.policy)} | _OF_THE_DATA
    changed = differences(config, new)
    if late := sorted(_OF_THE_START & changed.keys()):
        raise ConfigError(
            f"{', '.join(late)} cannot be changed when a run is resumed: it only says what a run "
            f"begins with, and learning has changed that since. Leave it out, or begin a new run."
        )
    refused = sorted(name for name in changed if name in fixed)
    if refused:
        raise ConfigError(
            f"{', '.join(refused)} cannot be changed when a run is resumed: what is saved depends "
            f"on it. Begin a new run with it, from these weights: --init-from RUN."
        )
    return new


def device_type(config: RunConfig) -> str:
    """The kind of device that a run learns on: cuda of cuda:1."""
    return config.run.device.partition(":")[0]


def differences(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Setting -> (before, after), of those that differ."""
    found: dict[str, tuple[Any, Any]] = {}
    for part in ("run", "policy", "algo"):
        old, new = getattr(before, part), getattr(after, part)
        for field in dataclasses.fields(old):
            pair = getattr(old, field.name), getattr(new, field.name)
            if pair[0] != pair[1]:
                found[field.name] = pair
    return found
