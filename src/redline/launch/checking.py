"""Every setting of every run, checked before the first run starts; all mistakes at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from redline.errors import ConfigError, RedlineError
from redline.launch.search_spaces import SearchSpace
from redline.launch.variants import Variant
from redline.plain_text import shown
from redline.train.config_files import config_of, given_settings, setting_mistakes
from redline.train.runs.checking import check_buildable
from redline.train.runs.given import Given
from redline.train.settings import RunConfig, RunSettings


def checked_settings(variant: Variant) -> tuple[dict[str, Any], list[str]]:
    """The settings as their types want them, and what is wrong with them.

    Args:
        variant: as the plan has it.

    Returns:
        Setting -> value, and one sentence per mistake.
    """
    settings = dict(variant.settings)
    if mistakes := setting_mistakes(variant.algorithm, settings):
        label = f"{variant.algorithm}: "
        return settings, [m if variant.algorithm in m else label + m for m in mistakes]
    config = starting_config(variant.algorithm, settings)
    if not config.run.env:
        return settings, ["env is missing: give one in base, such as env: CartPole-v1"]
    given = given_settings({"algorithm": variant.algorithm, **settings})
    settings = dict(given.settings) | ({"preset": given.preset} if given.preset else {})
    named = Given(
        algorithm=variant.algorithm, env=config.run.env, callbacks=tuple(config.run.callbacks)
    )
    try:
        check_buildable(config, named)
    except RedlineError as error:
        return settings, [f"{variant.algorithm} on {settings['env']}: {error}"]
    # Said even where it is the default: how far a run is depends on it.
    settings["total_env_steps"] = config.run.total_env_steps
    names = setting_names(config)
    return {n: value_of(config, n) if n in names else v for n, v in settings.items()}, []


def search_mistakes(algorithm: str, base: Mapping[str, Any], space: SearchSpace) -> list[str]:
    """What is wrong with the choices and bounds of a search, one sentence each.

    Each is tried in place of the base's value. One that is refused there may still be right beside
    another value of the search, as a core's size is beside a core; it is a mistake if no other
    single value mends it.

    Args:
        algorithm: its name, or module:Name.
        base: settings of every trial, right by themselves.
        space: what is drawn for each.
    """

    def mistakes(**drawn: Any) -> list[str]:
        variant = Variant(algorithm=algorithm, settings={**base, **drawn}, varies={})
        return checked_settings(variant)[1]

    found: list[str] = []
    for name, span in space.items():
        for value in span.extremes:
            if not (wrong := mistakes(**{name: value})):
                continue
            others = ((o, v) for o, s in space.items() if o != name for v in s.extremes)
            if all(mistakes(**{name: value, other: beside}) for other, beside in others):
                found += [f"search: {name}={shown(value)}: {each}" for each in wrong]
    return found


def seed_mistakes(seed: int) -> list[str]:
    """What is wrong with a seed; an empty list if nothing."""
    try:
        RunSettings(seed=seed)
    except ConfigError as error:
        return [str(error)]
    return []


def starting_config(algorithm: str, settings: dict[str, Any]) -> RunConfig:
    """The config that settings make, over the preset in force.

    Raises:
        RedlineError: if there is no such algorithm, preset or setting.
    """
    return config_of(given_settings({"algorithm": algorithm, **settings}))


def setting_names(config: RunConfig) -> set[str]:
    """Every setting by its flat name."""
    parts = (config.run, config.policy, config.algo)
    return {field.name for part in parts for field in dataclasses.fields(part)}


def value_of(config: RunConfig, name: str) -> Any:
    """The value of a setting, as plain data."""
    for part in (config.run, config.policy, config.algo):
        if name in {field.name for field in dataclasses.fields(part)}:
            value = getattr(part, name)
            return list(value) if isinstance(value, tuple) else value
    raise KeyError(name)
