"""Settings that the caller changed although nothing in the run uses them.

Whoever uses a setting says so: a config's class with `only_with`, a collector or a back end
with `options`. What a preset sets may have no effect, since it is made for many runs; what the
caller sets is meant to have one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gymnasium import spaces

from redline.algos.algorithm import Algorithm, OnPolicyAlgorithm
from redline.algos.bc import BC
from redline.algos.config import OnlyIf
from redline.algos.dqn import DQN
from redline.algos.r2d1 import R2D1
from redline.algos.registry import declaration
from redline.collect import Collector
from redline.collect.registry import COLLECTORS
from redline.envs import VecEnv
from redline.envs.atari import is_atari
from redline.envs.backends.backend import Backend
from redline.envs.backends.registry import BACKENDS
from redline.errors import ConfigError, UnknownNameError
from redline.models.observation_encoder import image_shape, leaf_spaces
from redline.policies.masks import network_space
from redline.previous_inputs import without_previous
from redline.train.loops.background_evaluation import BackgroundEvaluation
from redline.train.presets import FOLLOWING, preset_config
from redline.train.runs.given import Given
from redline.train.settings import RunConfig


def changed_settings(
    config: RunConfig, algorithm: str | type[Algorithm], base: RunConfig | None = None
) -> frozenset[str]:
    """Names of the settings that are neither the preset's nor the plain default.

    Args:
        config: all settings of a new run.
        algorithm: its name or class.
        base: the settings of another run that this one repeats; then names of those that differ.
    """
    usual = base or _preset_of(config, algorithm)
    return frozenset(
        field.name
        for field, value in _differing(config, usual)
        if value != field.default  # what a preset set has no effect any more, and needs none
    )


def settings_beside_preset(
    config: RunConfig, algorithm: str | type[Algorithm], base: RunConfig | None = None
) -> frozenset[str]:
    """Names of the settings that differ from the preset's, plain defaults among them.

    Args:
        config: all settings of a new run.
        algorithm: its name or class.
        base: the settings of another run that this one repeats; they are compared with where the
            preset is none of this version's.
    """
    try:
        usual = _preset_of(config, algorithm)
    except UnknownNameError:
        if base is None:
            raise
        usual = base
    return frozenset(field.name for field, _ in _differing(config, usual))


def _preset_of(config: RunConfig, algorithm: str | type[Algorithm]) -> RunConfig:
    """What a run's preset gives beside the settings that the run has otherwise."""
    said, run = declaration(algorithm), config.run
    beside: dict[str, Any] = {"env_kwargs": run.env_kwargs}
    alone = preset_config(said, run.env, run.preset, beside)
    for field, value in _differing(config, alone):
        if field.name not in FOLLOWING or value != field.default:
            beside[field.name] = value
    return preset_config(said, run.env, run.preset, beside)


def _differing(config: RunConfig, usual: RunConfig) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The fields with other values than in `usual`, and their values."""
    parts = (
        (config.run, usual.run),
        (config.policy, usual.policy),
        (config.algo, usual.algo),
    )
    for part, own in parts:
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if value != getattr(own, field.name, value):
                yield field, value


_OF_COLLECTING = ("stop_at_return", "reset_mode", "policy_device", "env_device")
"""Settings that say how episodes are collected, or how good they must be."""


def refuse_idle_settings(
    config: RunConfig,
    given: Given,
    algorithm: type[Algorithm],
    collector: type[Collector],
    backend: type[Backend],
    env: VecEnv,
) -> None:
    """Refuse the first setting that has no effect in this run.

    Args:
        config: as the caller gave it.
        given: with the names of the settings to look at.
        algorithm: of the run.
        collector: likewise.
        backend: of its environments.
        env: some of them.

    Raises:
        ConfigError: naming what the setting belongs to.
    """
    dense = _has_dense_layers(config, given, algorithm, env)
    values = _all_values(config) | {
        "actions": _kinds(env.action_space),
        "observations": _number_kinds(env),
        "layers": frozenset(["dense"] if dense else []),
        "environments": frozenset(["ALE"] if is_atari(config.run.env) else []),
    }
    for name in sorted(given.changed):
        if algorithm.learns_from_data and name in _OF_COLLECTING:
            raise ConfigError(
                f"{name}={values[name]!r} has no effect in this run: {config.algorithm} learns "
                f"from recorded episodes, and collects none. Leave {name} out."
            )
        if algorithm.learns_from_data and _is_never_scored(name, config):
            raise ConfigError(
                f"checkpoints='best' has no effect in this run: {config.algorithm} learns from "
                f"recorded episodes, so none says how good it is. Evaluate it, as with "
                f"--eval-interval 1000, or leave checkpoints out."
            )
        problem = _idle_placement(name, config, collector, backend) or next(
            (_unmet(each, values) for each in _conditions(config, name) if not _met(each, values)),
            None,
        )
        if problem:
            raise ConfigError(
                f"{name}={values[name]!r} has no effect in this run: it belongs to {problem}, or "
                f"leave {name} out."
            )


def _is_never_scored(name: str, config: RunConfig) -> bool:
    """Whether the best checkpoint is asked for where no episode is ever played."""
    return (
        name == "checkpoints" and config.run.checkpoints == "best" and not config.run.eval_interval
    )


def _all_values(config: RunConfig) -> dict[str, Any]:
    """Every setting by its name."""
    return {
        field.name: getattr(part, field.name)
        for part in (config.run, config.policy, config.algo)
        for field in dataclasses.fields(part)
    }


def _conditions(config: RunConfig, name: str) -> Iterator[OnlyIf]:
    """What must hold for a setting to have an effect, as the configs' classes say."""
    for part in (config.run, config.policy, config.algo):
        for kind in type(part).__mro__:
            yield from vars(kind).get("only_with", {}).get(name, ())


def _met(condition: OnlyIf, values: Mapping[str, Any]) -> bool:
    # An algorithm of one's own may lack the other setting: nothing can be said then.
    if condition.name not in values or condition.holds(values[condition.name]):
        return True
    return any(values.get(name) for name in condition.or_given)


def _unmet(condition: OnlyIf, values: Mapping[str, Any]) -> str:
    present = values[condition.name]
    if isinstance(present, frozenset):
        here = " and ".join(sorted(present)) or "none"
        return f"{condition}, and here are {here}. Use it there"
    return f"{condition}, and here it is {present!r}. Change that"


def _idle_placement(
    name: str, config: RunConfig, collector: type[Collector], backend: type[Backend]
) -> str:
    """Whose setting it is, if that is a placement that this run does not have."""
    owners = [f"collector={kind.name!r}" for kind in COLLECTORS if name in kind.options]
    owners += [f"env_backend={kind.name!r}" for kind in BACKENDS if name in kind.options]
    if name in BackgroundEvaluation.options:
        owners.append("eval_async")
    evaluates = config.run.eval_async and config.run.eval_interval > 0
    used = (
        not owners
        or collector.takes(name, backend)
        or name in backend.options
        or (evaluates and name in BackgroundEvaluation.options)
    )
    if used:
        return ""
    label = f"collector={config.run.collector!r} and env_backend={backend.name!r}"
    return f"{_listed(owners)}, and here is {label}. Change that"


def _has_dense_layers(
    config: RunConfig, given: Given, algorithm: type[Algorithm], env: VecEnv
) -> bool:
    """Whether the networks have the layers that `hidden_sizes` describes, as far as is known.

    An encoder of one's own stands in their place, and so does a convolutional network where an
    image is all that the policy sees. The critics of DDPG, TD3 and SAC have them all the same,
    and what an algorithm of one's own makes of the settings only that one knows.
    """
    own: Any = algorithm.make_policy
    known: tuple[Any, ...] = (
        OnPolicyAlgorithm.make_policy,
        BC.make_policy,
        DQN.make_policy,
        R2D1.make_policy,
    )
    if own.__func__ not in [each.__func__ for each in known]:
        return True
    if given.network is not None or config.run.network is not None:
        return False
    seen = without_previous(network_space(env.observation_space))  # it joins the features
    leaves = [leaf for _, leaf in leaf_spaces(seen)]
    only_image = len(leaves) == 1 and image_shape(leaves[0]) is not None
    return not only_image or config.policy.encoder == "mlp"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _kinds(space: spaces.Space[Any]) -> frozenset[str]:
    """The kinds of the parts of a space, such as {"Box", "Discrete"}."""
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    leaves = [leaf for _, leaf in leaf_spaces(space)]
    return frozenset(
        kind.__name__ for kind in known if any(isinstance(leaf, kind) for leaf in leaves)
    )


def _number_kinds(env: VecEnv) -> frozenset[str]:
    """Whether a policy is shown floats, which can be normalized, or only other numbers."""
    leaves = [leaf for _, leaf in leaf_spaces(network_space(env.observation_space))]
    is_float = [isinstance(each, spaces.Box) and each.dtype.kind == "f" for each in leaves]
    return frozenset(["float"] if any(is_float) else [])
