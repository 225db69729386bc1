"""What the caller gave, and what `config.json` can only name: classes, environments, networks."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import gymnasium

from redline.algos.algorithm import Algorithm
from redline.algos.registry import algorithm_label, find_algorithm
from redline.collect import Collector, find_collector
from redline.envs import EnvSettings
from redline.envs.atari import is_atari
from redline.envs.backends.backend import Backend
from redline.errors import ConfigError, IncompatibleCheckpointError
from redline.models.registry import NetworkFactory, find_network, network_label
from redline.plain_text import shortened, shown
from redline.registry import PYTHON_ONLY, is_named, may_be_same
from redline.train.runs.outside_settings import require_confirmed_env_kwargs
from redline.train.settings import RunConfig

EnvArgument: TypeAlias = "str | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.vector.VectorEnv"
"""What a user may give as an environment."""

_LONGEST_ARGUMENTS = 80  # of an environment, in a label: tables and names of directories have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the caller gave as Python objects, which `config.json` can only name.

    Attributes:
        algorithm: class, or module:Name of one.
        env: id, callable or `VectorEnv`; None: as the config says.
        network: in place of the built-in encoders: a factory, a name, or module:Name of one;
            None: as the config says.
        data: recorded episodes: arrays by their names, or a `minari.MinariDataset`; None: none,
            or those that only the run directory names.
        env_backend: what steps the environments: a name, class or module:Name of one; None: as
            the config says.
        collector: likewise, what collects.
        callbacks: objects, classes without arguments, or module:Name of them.
        changed: names of the settings that the caller changed from those of the preset, or, where
            a run is resumed, from its own.
        confirmed: settings of a run directory that the caller says, too, because they reach
            outside it; see `outside_settings`.
        are_new: whether the settings are; False: a run, a sweep or a search was begun with them,
            by the rules of that time.
    """

    algorithm: str | type[Algorithm] | None = None
    env: EnvArgument | None = None
    network: str | NetworkFactory | None = None
    data: Any = None
    env_backend: str | type[Backend] | None = None
    collector: str | type[Collector] | None = None
    callbacks: tuple[Any, ...] = ()
    changed: frozenset[str] = frozenset()
    confirmed: Mapping[str, Any] = field(default_factory=dict)
    are_new: bool = True


def describe_env(env: EnvArgument) -> str:
    """What `config.json` says of an environment."""
    if isinstance(env, str):
        return env
    if isinstance(env, functools.partial):
        told = [*map(_told, env.args), *(f"{name}={_told(v)}" for name, v in env.keywords.items())]
        return f"{describe_env(env.func)}({_in_short(', '.join(told))})"
    if isinstance(env, gymnasium.vector.VectorEnv):
        spec = env.spec
        return _place(type(env)) + ("" if spec is None else f"({spec.id})")
    return _place(env if hasattr(env, "__qualname__") else type(env))


def _place(item: Any) -> str:
    return f"{PYTHON_ONLY}{item.__module__}.{item.__qualname__}"


def _told(value: Any) -> str:
    """An argument of an environment; of what is no plain data, its type."""
    if isinstance(value, Path):
        return str(value)
    return str(value) if _is_plain(value) else type(value).__name__


def _is_plain(value: Any) -> bool:
    """Whether its text says what it is, in the next process as well."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return all(map(_is_plain, mapping)) and all(map(_is_plain, mapping.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, cast("Sequence[Any]", value)))
    return value is None or isinstance(value, (bool, int, float, str))


def _in_short(text: str) -> str:
    """At most 80 characters, which differ where the texts do."""
    if len(text) <= _LONGEST_ARGUMENTS:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{text[: _LONGEST_ARGUMENTS - 9]}~{digest}"


def is_same_env(env: EnvArgument, present: str) -> bool:
    """Whether an environment may be the one of a run, as far as names tell.

    Args:
        env: what the caller gave.
        present: what the run's `config.json` says. An older one leaves out the arguments of a
            `functools.partial`, and what a `VectorEnv` is of.
    """
    name, _, arguments = describe_env(env).partition("(")
    present_name, _, present_arguments = present.partition("(")
    if not present_arguments and arguments:
        if isinstance(env, functools.partial):
            return present == f"{PYTHON_ONLY}functools.partial"
        return name == present_name
    return arguments == present_arguments and may_be_same(name, present_name)


def collector_of(config: RunConfig, given: Given) -> type[Collector]:
    """The class of the run's collector."""
    return find_collector(_named_again(config.run.collector, given.collector, "collector"))


def algorithm_of(config: RunConfig, given: Given) -> type[Algorithm]:
    """The class of the run's algorithm."""
    named = config.algorithm if is_named(config.algorithm) else given.algorithm
    return find_algorithm(named or config.algorithm)


def network_of(config: RunConfig, given: Given) -> NetworkFactory | None:
    """The factory of the run's network; None: a built-in one.

    A run from before there was this setting does not say that it has a network of its own. The
    caller's word is all there is then, and parameters that do not fit are refused.
    """
    label = config.run.network
    named = given.network if label is None else _named_again(label, given.network, "network")
    return None if named is None else find_network(named)


def require_same_algorithm(
    config: RunConfig, out: Path, algorithm: str | type[Algorithm] | None
) -> None:
    """Refuse another algorithm than the run has, as far as names tell.

    Raises:
        ConfigError: with both names.
    """
    label = config.algorithm if algorithm is None else algorithm_label(algorithm)
    if not may_be_same(label, config.algorithm):
        raise ConfigError(
            f"{out} is a run of {config.algorithm}, not of {label}. Leave the "
            f"algorithm out, or give another run directory."
        )


def require_same_network(config: RunConfig, out: Path, given: Given) -> str | None:
    """Refuse another network than the run has, as far as their names tell.

    Args:
        config: of the run.
        out: its directory, for messages.
        given: what the caller gave.

    Returns:
        A sentence to say where names cannot tell, since no import gives the network back.

    Raises:
        IncompatibleCheckpointError: if both are places in modules, and differ.
    """
    if config.run.network is None or given.network is None:
        return None
    present, label = network_label(config.run.network), network_label(given.network)
    if label == present:
        return None
    if label.startswith(PYTHON_ONLY) or present.startswith(PYTHON_ONLY):
        return (
            f"the network is {shortened(label)} now, and was {shortened(present)} when the run "
            f"began: names cannot tell whether they are the same"
        )
    raise IncompatibleCheckpointError(
        f"{out} was trained with the network {shortened(present)}, not with {shortened(label)}. "
        f"Give the same network, or start a new run; --init-from {out} takes the weights that fit."
    )


def _named_again(label: str, given: Any, setting: str) -> Any:
    """What the caller gave, or the name that the config holds.

    Raises:
        ConfigError: if only the run directory names it, and it is Python code.
    """
    if given is not None:
        return given
    if ":" not in label:
        return label
    name_it = f"name it again: --{setting.replace('_', '-')} {shortened(label)}"
    if label.startswith(PYTHON_ONLY):
        name_it = f"give it again from Python, to redline.train or redline.load: {setting}=..."
    raise ConfigError(
        f"the {setting} of this run, {shown(label, 200)}, is Python code, and a run directory "
        f"alone must not decide what is imported. If you trust it, {name_it}."
    )


def env_settings(
    config: RunConfig, given: Given, collector: type[Collector] | None = None
) -> EnvSettings:
    """How to make the run's environments.

    Args:
        config: of the run.
        given: what the caller gave.
        collector: what steps them; None: the one that the config names, if Redline knows it.

    Raises:
        ConfigError: if the environment can only be made by the program that started the run.
    """
    run, env = config.run, given.env
    if env is None:
        if not run.env:
            raise ConfigError(
                "env is missing: there is nothing to train on. Give a Gymnasium id, such as "
                "--env CartPole-v1."
            )
        if ":" in run.env and not run.env.startswith(PYTHON_ONLY):
            raise ConfigError(
                f"the environment of this run, {shown(run.env, 200)}, is made by a Python module, "
                "and a run "
                f"directory alone must not decide what is imported. If you trust it, name it "
                f"again: --env {shortened(run.env)}"
            )
        if run.env.startswith(PYTHON_ONLY):
            raise ConfigError(
                "the environment of this run was given as a Python object "
                f"({shortened(run.env)}), which no "
                f"file can hold. Call redline.train(resume=..., env=...) or redline.load(..., "
                f"env=...) with the same object."
            )
        env = run.env
    require_confirmed_env_kwargs(config, given.confirmed.get("env_kwargs"))
    backend = _named_again(run.env_backend, given.env_backend, "env_backend")
    if isinstance(env, gymnasium.vector.VectorEnv) and run.eval_interval:
        raise ConfigError(
            "eval_interval needs environments beside those that train, and a VectorEnv object is "
            "only one. Give an id, or a callable that makes one gymnasium.Env."
        )
    if collector is None:
        collector = Collector if ":" in run.collector else find_collector(run.collector)
    backend = collector.choose_backend(env, backend)
    return EnvSettings(
        env=env,
        backend=backend,
        preset=run.atari_preset if is_atari(env) else None,
        clip_reward=run.clip_reward,
        episodic_life=run.episodic_life,
        sticky_actions=run.sticky_actions,
        noop_max=run.noop_max,
        frame_skip=run.frame_skip,
        observe_previous=run.observe_previous,
        env_kwargs=run.parsed_env_kwargs(),
        num_workers=run.num_workers,
        worker_timeout_s=run.worker_timeout_s,
        tune_process=run.tune_process,
        log_info=run.log_info,
        check_env=run.check_env,
    )
