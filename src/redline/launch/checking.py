"""Every setting of every run, checked before the first run starts; all mistakes at once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from redline.collect import find_collector
from redline.envs.backends.registry import find_backend
from redline.errors import ConfigError, RedlineError
from redline.launch.search_spaces import SearchSpace
from redline.launch.variants import Variant
from redline.models.registry import find_network
from redline.registry import import_place
from redline.train.config_files import config_of, given_settings, labels_of, setting_mistakes
from redline.train.runs.checking import check_buildable
from redline.train.runs.given import Given
from redline.train.settings import RunConfig, RunSettings


def checked_settings(variant: Variant, *, are_new: bool = True) -> tuple[dict[str, Any], list[str]]:
    """The settings as their types want them, and what is wrong with them.

    Args:
        variant: as the plan has it.
        are_new: whether they are; False: a search was begun with them.

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
        algorithm=variant.algorithm,
        env=config.run.env,
        callbacks=tuple(config.run.callbacks),
        # A folder's settings have been confirmed by now; the caller's own file need not be.
        confirmed={"env_kwargs": config.run.env_kwargs},
        are_new=are_new,
    )
    try:
        check_buildable(config, named)
    except RedlineError as error:
        return settings, [f"{variant.algorithm} on {settings['env']}: {error}"]
    except Exception as error:  # noqa: BLE001 - code of the user's own may raise anything
        return settings, [
            f"{variant.algorithm} on {settings['env']}: {type(error).__name__}: {error}. "
            f"`redline train` with these settings shows where it was raised"
        ]
    # Said even where it is the default: how far a run is depends on it.
    settings["total_env_steps"] = config.run.total_env_steps
    return _typed(config, settings), []


def typed_settings(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their flat names, as their types want them: a single word as a list of one.

    Raises:
        RedlineError: if one is wrong.
    """
    return _typed(starting_config(algorithm, dict(settings)), settings)


def _typed(config: RunConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    names = setting_names(config)
    return {n: value_of(config, n) if n in names else v for n, v in settings.items()}


def search_mistakes(algorithm: str, base: Mapping[str, Any], space: SearchSpace) -> list[str]:
    """What is wrong with the choices and bounds of a search, one sentence each.

    A value may be right only beside some values of others. So it counts as wrong if it is refused
    in each of many draws of a trial, or if it names code that is not there; modules are imported.
    What only an environment or a network can tell is left to the trials.

    Args:
        algorithm: its name, or module:Name.
        base: settings of every trial, right by themselves.
        space: what is drawn for each.
    """
    draws = random.Random(0)
    found: list[str] = []
    for name, span in space.items():
        for value, drawn in span.checked_values:
            wrong = _always_refused(algorithm, base, space, {name: drawn}, draws)
            if wrong and drawn != value:  # the bound that was said reads better
                wrong = _always_refused(algorithm, base, space, {name: value}, draws) or [
                    f"{each} Trials draw such numbers where a bound of {name} is not whole."
                    for each in wrong[:1]
                ]
            found += wrong or _names_no_code(name, value)
    # One that has a single, wrong value is named wherever another one is looked at, too.
    return [f"search: {mistake}" for mistake in dict.fromkeys(found)]


_DRAWS = 256


def _always_refused(
    algorithm: str,
    base: Mapping[str, Any],
    space: SearchSpace,
    fixed: Mapping[str, Any],
    draws: random.Random,
) -> list[str]:
    """What is wrong with a value in each of many draws; empty if it is right in one of them."""
    about_it: list[str] = []
    about_others: list[str] = []
    for _ in range(_DRAWS):
        drawn = {name: span.draw(draws) for name, span in space.items()} | dict(fixed)
        mistakes = setting_mistakes(algorithm, {**base, **drawn})
        if not mistakes:
            return []
        about_it = about_it or [m for m in mistakes if any(f"{name}=" in m for name in fixed)]
        about_others = about_others or mistakes
    return about_it or about_others


_FIND: Mapping[str, Callable[[str], object]] = {
    "network": find_network,
    "collector": find_collector,
    "env_backend": lambda label: label == "auto" or find_backend(label),
    "callbacks": lambda label: import_place(label, "callback"),
}


def _names_no_code(name: str, value: Any) -> list[str]:
    """What is wrong with the names of classes and functions that a setting holds."""
    found: list[str] = []
    for label in labels_of(value) if name in _FIND else ():
        try:
            _FIND[name](label)
        except RedlineError as error:
            found.append(str(error))
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
