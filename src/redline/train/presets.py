"""Which named hyperparameters a run starts from.

`--preset NAME` starts from one of the algorithm's own sets; options given beside it win. What a set
holds only because of another of its settings goes when that one is given anew: see `_DERIVED`.
`--preset auto` looks the environment up in `FAMILIES`; `--preset default` takes the plain
defaults. The sets stand with the algorithms (`algos/presets/`, or a class's `presets`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from numbers import Number
from types import MappingProxyType
from typing import Any

from redline.algos.registry import Declaration, declaration
from redline.errors import ConfigError, UnknownNameError
from redline.registry import PYTHON_ONLY
from redline.train.settings import PolicySettings, RunConfig, RunSettings

FAMILIES: tuple[tuple[str, str], ...] = (
    (r"^(redline/)?CartPole-v\d$", "cartpole"),
    (r"^(redline/)?Acrobot-v\d$", "acrobot"),
    (r"^(redline/)?MountainCar-v\d$", "mountaincar"),
    (r"^(redline/)?MountainCarContinuous-v\d$", "mountaincarcontinuous"),
    (r"^(FrozenLake|FrozenLake8x8|Taxi|CliffWalking|CliffWalkingSlippery)-v\d$", "toytext"),
    (r"^LunarLander-v\d$", "lunarlander"),
    (r"^LunarLanderContinuous-v\d$", "lunarlandercontinuous"),
    (r"^BipedalWalker-v\d$", "bipedalwalker"),
    (r"^BipedalWalkerHardcore-v\d$", "bipedalwalkerhardcore"),
    (r"^HalfCheetah-v\d$", "halfcheetah"),
    (r"^Hopper-v\d$", "hopper"),
    (r"^Swimmer-v\d$", "swimmer"),
    (
        r"^(Walker2d|Ant|Humanoid|HumanoidStandup|Reacher|Pusher"
        r"|InvertedPendulum|InvertedDoublePendulum)-v\d$",
        "mujoco",
    ),
    (r"^ALE/", "atari"),
    (r"^MinAtar/", "minatar"),
    (r"^redline/(Asterix|Breakout|Freeway|Seaquest|SpaceInvaders)-v\d$", "minatar"),
    (r"^(redline/)?Pendulum-v\d$", "pendulum"),
    (r"^redline/CartPoleHiddenVelocity-v\d$", "recurrent"),
    (r"^redline/TMaze-v\d$", "memory"),
)
"""(pattern of the environment's id, family) in the order in which they are tried."""

PARENTS = {
    "halfcheetah": "mujoco",
    "hopper": "mujoco",
    "swimmer": "mujoco",
    "lunarlandercontinuous": "lunarlander",
    "bipedalwalkerhardcore": "bipedalwalker",
}
"""The family that a more special one falls back to, where an algorithm has no preset for it."""


def _any_value(before: Any, given: Any) -> bool:
    del before, given
    return True


def _another(before: Any, given: Any) -> bool:
    # What is of no such type is refused later, by its name.
    return isinstance(given, (Number, str)) and given != before


def _another_core(before: Any, given: Any) -> bool:
    return given != "none" and _another(before, given)


def _whole_copies(before: Any, given: Any) -> bool:
    return given == 1.0 and _another(before, given)


OWN_LEARNING_RATES = ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate")
"""Settings of single optimizers, which follow `learning_rate` where they are None."""

_DERIVED: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    *((name, "learning_rate", _any_value) for name in OWN_LEARNING_RATES),
    ("num_minibatches", "num_envs", _another),
    ("num_minibatches", "rollout_length", _another),
    ("num_minibatches", "core", _another_core),
    ("tau", "target_update_interval", _another),
    ("target_update_interval", "tau", _whole_copies),
)
"""(setting, what a preset chose it for, which values of that, beside the preset's, end it).

Such a setting of a preset goes back to its plain default, unless it is given as well.
"""

_ROWS = 64  # of a minibatch where num_minibatches is None, see PPOConfig

FOLLOWING = frozenset(setting for setting, _, _ in _DERIVED)
"""Settings that a preset may have chosen for others."""

COUPLED = FOLLOWING | {chosen_for for _, chosen_for, _ in _DERIVED}
"""Settings of which `preset_config` must know whether they are given."""


KINDS = {
    "continuous": ("lunarlander", "lunarlandercontinuous"),
    "hardcore": ("bipedalwalker", "bipedalwalkerhardcore"),
}
"""Argument of an environment's constructor -> the family without it, and the one with it."""


def family(env: str, env_kwargs: Any = None) -> str:
    """The family of an environment's id; "default" if it belongs to none.

    Args:
        env: its id; one in `module:Id` belongs where `Id` does.
        env_kwargs: for its constructor, a mapping or JSON: they may say which of two it is.
    """
    if env.startswith(PYTHON_ONLY):  # a place in code, and arguments that may be an id
        return "default"
    env = env.rpartition(":")[2]
    found = next((name for pattern, name in FAMILIES if re.search(pattern, env)), "default")
    for argument, kinds in KINDS.items():
        if found in kinds and argument in (given := _mapping(env_kwargs)):
            return kinds[bool(given[argument])]
    return found


def _mapping(env_kwargs: Any) -> Mapping[str, Any]:
    if isinstance(env_kwargs, str):
        try:
            env_kwargs = json.loads(env_kwargs)
        except (ValueError, RecursionError):
            return {}  # refused with the other settings
    return env_kwargs if isinstance(env_kwargs, Mapping) else {}


def preset_config(
    algorithm: str | Declaration,
    env: str,
    preset: str,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> RunConfig:
    """The config that a preset gives, to change options of.

    Args:
        algorithm: its name, or what it says of itself.
        env: id of the environment; "" if it has none.
        preset: a name in the algorithm's `presets` or `variants`, "auto" or "default".
        given: settings that are to be laid over it, which end what follows them; not checked here.
            Its `env_kwargs` choose as well, see `family`.

    Raises:
        UnknownNameError: if there is no such preset.
    """
    if not isinstance(preset, str):
        raise ConfigError(
            f"preset={preset!r} is of type {type(preset).__name__}. Give the name of a preset, "
            f"such as 'auto' or 'default'."
        )
    if isinstance(algorithm, str):
        algorithm = declaration(algorithm)
    plain = RunConfig(
        algorithm=algorithm.label,
        run=RunSettings(env=env),
        policy=PolicySettings(),
        algo=algorithm.Config(),
    ).replace(**algorithm.defaults)
    known, variants = algorithm.presets, algorithm.variants
    env_kwargs = given.get("env_kwargs")
    if preset in variants:
        own = _family_with_preset(known, env, env_kwargs)
        needed = algorithm.variant_presets.get((preset, own), {})
        changes = {**known.get(own, {}), **variants[preset], **needed}
        return _laid_over(plain, changes, given).replace(preset=preset)
    name = _family_with_preset(known, env, env_kwargs) if preset == "auto" else preset
    if name == "default":
        return plain.replace(preset=name)
    if name not in known:
        choices = sorted({*known, *variants})
        close = difflib.get_close_matches(name, choices, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UnknownNameError(
            f"{algorithm.name} has no preset {preset!r}{hint}. Choose one of: auto, default, "
            f"{', '.join(choices)}."
        )
    return _laid_over(plain, known[name], given).replace(preset=name)


def _laid_over(
    plain: RunConfig, settings: Mapping[str, Any], given: Mapping[str, Any]
) -> RunConfig:
    """The plain defaults with a preset's settings, less those that `given` ends."""
    whole = plain.replace(**settings)
    ended = {
        setting
        for setting, chosen_for, ends in _DERIVED
        if setting in settings
        and setting not in given
        and chosen_for in given
        and ends(_value(whole, chosen_for), given[chosen_for])
        and not _is_kept(setting, plain, whole)
    }
    if not ended:
        return whole
    return plain.replace(**{n: value for n, value in settings.items() if n not in ended})


def _value(config: RunConfig, name: str) -> Any:
    """The value of a setting; None where the algorithm has none of that name."""
    parts = (config.run, config.policy, config.algo)
    return next((getattr(part, name) for part in parts if hasattr(part, name)), None)


def _is_kept(setting: str, plain: RunConfig, whole: RunConfig) -> bool:
    """Whether a preset's value stays although what it was chosen for is given."""
    if setting == "tau":
        return _value(plain, "tau") != 1.0  # of SAC: the plain default follows slowly, too
    return setting == "num_minibatches" and _has_rows_of_its_own(whole)


def _has_rows_of_its_own(whole: RunConfig) -> bool:
    """Whether a preset's minibatches have another size than those of num_minibatches=None."""
    names = ("num_envs", "rollout_length", "num_minibatches")
    envs, length, count = (_value(whole, name) for name in names)
    return count is None or envs * length != count * _ROWS


def _family_with_preset(known: Mapping[str, Mapping[str, Any]], env: str, env_kwargs: Any) -> str:
    """The environment's family, its parent if only that has a preset, or "default"."""
    name = family(env, env_kwargs)
    if name in known:
        return name
    parent = PARENTS.get(name, name)
    return parent if parent in known else "default"
