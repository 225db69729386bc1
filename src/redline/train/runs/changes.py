"""Settings that a resumed run goes on with instead of its own: `--resume RUN --set NAME=VALUE`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from redline.devices import choose_device, kind_of_name, require_device
from redline.engines.engine import ASKED_FOR
from redline.errors import ConfigError
from redline.train.presets import OWN_LEARNING_RATES
from redline.train.setting_names import OF_THE_RUN
from redline.train.settings import DEVICE_SETTINGS, PLACING_SETTINGS, RunConfig

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
        "priority_alpha",
        "sequence_length",
        "burn_in",
        "state_interval",
    )
)
"""Hyperparameters that say what the saved environments and replay look like."""

_OF_THE_NETWORKS = frozenset(
    (
        "critic_hidden_sizes",
        "critic_layer_norm",
        "dueling",
        "head_hidden_sizes",
        "noisy",
        "num_critics",
        "num_skills",
    )
)
"""Hyperparameters that say which layers the saved networks have."""

_OF_THE_OUTPUTS = frozenset(
    (
        "value_distribution",
        "num_atoms",
        "v_min",
        "v_max",
        "num_quantiles",
        "value_rescaling",
    )
)
"""Hyperparameters that say what the outputs of saved networks mean: others would fit as well."""

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
        DeviceError: if a device is not there.
    """
    new = config.replace(**_with_devices_found(changes))
    _require_same_kind_of_loop(config, new)
    moves = kind_of_name(new.run.device) != kind_of_name(config.run.device)
    engine = config.run.accelerate
    stays = engine == "compile" or (engine == "eager" and why_engine == ASKED_FOR)
    if moves and "accelerate" not in changes and not stays:
        new = new.replace(accelerate="auto")
    if new.run.accelerate != engine and "cpu_acting" not in changes:
        new = new.replace(cpu_acting=None)  # follows the engine
    fixed = {f.name for f in dataclasses.fields(config.run)} - OF_THE_RUN
    fixed |= {f.name for f in dataclasses.fields(config.policy)} | _OF_THE_DATA
    fixed |= _OF_THE_NETWORKS | _OF_THE_OUTPUTS
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


def told_of_changes(before: RunConfig, after: RunConfig, given: Mapping[str, Any]) -> list[str]:
    """What new settings bring about beside what they say, one sentence each.

    Args:
        before: the run's settings.
        after: those that it goes on with.
        given: the settings that the caller gave.
    """
    changed = differences(before, after)
    found: list[str] = []
    if "learning_rate" in changed:
        own = {n: getattr(after.algo, n, None) for n in OWN_LEARNING_RATES if n not in given}
        stay = [f"{name}={rate:g}" for name, rate in own.items() if rate is not None]
        if stay:
            found.append(
                f"learning_rate={changed['learning_rate'][1]:g} does not change "
                f"{' and '.join(stay)}, which the run has of its own. Set them, too, if they are "
                f"meant."
            )
    if "optimizer" in changed:
        old, new = changed["optimizer"]
        found.append(f"{new} begins with averages of its own, which {old} did not keep.")
    if changed.get("scale_reward") == (False, True):
        found.append(
            "the statistics that scale rewards begin anew, and the value learns rewards of "
            "another size from here on."
        )
    return found


def _with_devices_found(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with the device that `auto` chooses in its place.

    Raises:
        DeviceError: if a device has no such name, or is not there.
    """
    found = dict(changes)
    for name in DEVICE_SETTINGS:
        if isinstance(asked := changes.get(name), str):
            require_device(asked, name, resumed=True)
            found[name] = choose_device(asked)[0]
    return found


def _require_same_kind_of_loop(config: RunConfig, new: RunConfig) -> None:
    """Refuse to place what followed `device` so far, or the other way round.

    Environments and acting with a place of their own are collected by another loop, which saves
    other things.

    Raises:
        ConfigError: naming the setting.
    """
    for name in PLACING_SETTINGS:
        before, after = getattr(config.run, name), getattr(new.run, name)
        if (before is None) != (after is None):
            how = "is left to follow device" if before is None else f"has a place, {before!r}"
            raise ConfigError(
                f"{name}={after!r} cannot be changed when a run is resumed in which it {how}: the "
                f"saved environments and noise are those of another loop. Leave it as it is, or "
                f"begin a new run from these weights: --init-from RUN."
            )


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
