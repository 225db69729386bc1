"""From a name or callable to a function that makes one environment."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing

from redline.envs import atari
from redline.envs.games import goal_tasks, ids, memory_tasks, minatar
from redline.envs.space_checks import CheckEnv
from redline.errors import ConfigError, EnvError, MissingExtraError, RedlineError, UnknownNameError
from redline.plain_text import shortened, shown
from redline.registry import find_modules_here, require_place
from redline.user_code import may_not_exit

# Part of the entry point of environments that need a package: its name, our extra, purpose.
_NEEDS = (
    ("mujoco", "mujoco", "mujoco", "MuJoCo environments"),
    ("box2d", "Box2D", "box2d", "Box2D environments"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEnv:
    """How to make one environment.

    Attributes:
        make: makes it; can be sent to a worker with cloudpickle.
        env_id: what to call it in messages and configs.
        frame_skip: simulator frames per step, where the protocol fixes it.
        info_names: of the values in the last info of an episode that are logged.
        check_env: how often observations are compared with their space; see `space_checks`.
    """

    make: Callable[[], gymnasium.Env[Any, Any]]
    env_id: str
    frame_skip: int = 1
    info_names: tuple[str, ...] = ()
    check_env: CheckEnv = "first"


def find_single(
    env: str | Callable[[], gymnasium.Env[Any, Any]],
    protocol: atari.AtariPreset | None,
    env_kwargs: dict[str, Any],
) -> SingleEnv:
    """How to make one of `env`; nothing is made yet, but the name is looked up.

    Args:
        env: an id, or a callable that makes one.
        protocol: of an Atari game; None for all others.
        env_kwargs: for the environment's constructor.

    Raises:
        ConfigError: if `env_kwargs` are given where they do not apply.
        UnknownNameError: if there is no such environment.
        MissingExtraError: if the package that has it is not installed.
    """
    if not isinstance(env, str):
        return _find_callable(env, env_kwargs)
    if ids.is_native(env):
        raise ConfigError(
            f"{env} is stepped as a whole batch and cannot be made alone. Its original is "
            f"{ids.ORIGINALS[env]!r}."
        )
    if protocol is not None:
        atari.register_games()
        check_registered(import_module_of(env))
        game = functools.partial(_make_game, env, protocol, env_kwargs)
        return SingleEnv(
            make=lambda: _fitting(game, env, env_kwargs),
            env_id=env,
            frame_skip=protocol.frame_skip,
        )
    if env.startswith(minatar.PREFIX):
        if env not in minatar.IDS:
            raise _unknown(env, f"there is no MinAtar game {env!r}")
        make = functools.partial(minatar.make_minatar, env, env_kwargs)
        return SingleEnv(make=lambda: _fitting(make, env, env_kwargs), env_id=env)
    name = import_module_of(env)
    _register_own(name)
    check_registered(name)
    make = functools.partial(_make_registered, env, env_kwargs)
    return SingleEnv(make=lambda: _fitting(make, env, env_kwargs), env_id=env)


def name_of(env: Any) -> str:
    """What to call a callable, or an instance, that is not a name itself."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        spec = env.spec
        return spec.id if spec is not None else type(env.unwrapped).__name__
    function = getattr(env, "func", env)  # of a functools.partial
    return getattr(function, "__qualname__", type(function).__qualname__)


def refuse_atari_settings(env: Any, preset: str | None, settings: dict[str, Any]) -> None:
    """Refuse what is for Atari games only, where the environment is none.

    Args:
        env: none of ALE's ids.
        preset: name of a protocol, if there is one.
        settings: name -> what was asked for; None: nothing.

    Raises:
        ConfigError: if there is any of it.
    """
    for name, value in settings.items():
        if value is not None:
            raise ConfigError(
                f"{name}={value} is a setting of ALE's games, and {name_of(env)} is not an "
                f"ALE/*-v5 game. Leave {name} out."
            )
    if preset is not None:
        atari.find_preset(preset)
        raise ConfigError(
            f"preset={preset!r} is an Atari protocol, but {name_of(env)} is not an ALE/*-v5 game. "
            f"Leave the preset out."
        )


def check_registered(env_id: str) -> None:
    """Refuse an id that Gymnasium does not know.

    Raises:
        UnknownNameError: with close matches.
    """
    try:
        gymnasium.spec(env_id)
    except (gymnasium.error.Error, ModuleNotFoundError, ValueError) as error:
        raise _unknown(
            env_id, f"there is no environment {shown(env_id)} ({shortened(error)})"
        ) from error


def _find_callable(
    env: Callable[[], gymnasium.Env[Any, Any]], env_kwargs: dict[str, Any]
) -> SingleEnv:
    if isinstance(env, gymnasium.Env):
        raise ConfigError(
            "env is one gymnasium.Env, but a batch needs several. Give a callable that makes one, "
            "such as `lambda: MyEnv()`."
        )
    if not callable(env):
        raise ConfigError(
            f"env is of type {type(env).__name__}. Give a Gymnasium id, a callable that makes one "
            f"gymnasium.Env, or a gymnasium.vector.VectorEnv."
        )
    if env_kwargs:
        raise ConfigError(
            f"env_kwargs {sorted(env_kwargs)} are for an id; bind them into the callable with "
            f"functools.partial."
        )
    return SingleEnv(make=env, env_id=name_of(env))


def import_module_of(env: str) -> str:
    """The id in `module:Id`, after importing the module, which is to register it."""
    module, colon, name = env.rpartition(":")
    if not colon:
        return env
    require_place(module, name, f"environment {env!r}")
    find_modules_here()
    try:
        with may_not_exit(f"the module {module!r} of the environment {env!r}", ConfigError):
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnknownNameError(
            f"the module {module!r} of the environment {env!r} cannot be imported ({error}). "
            f"Install it, or put its folder on the path: PYTHONPATH=FOLDER redline ..."
        ) from error
    return name


@contextlib.contextmanager
def _quiet_mujoco(entry_point: str) -> Iterator[None]:
    """Send MuJoCo's remarks on model files to logging.

    By itself it prints them once per environment and writes MUJOCO_LOG.TXT into the
    folder that the program happens to stand in.
    """
    if "mujoco" not in entry_point:
        yield
        return
    try:
        import mujoco
    except ImportError:
        yield  # the making itself will say what is missing
        return
    get_handler: Any = getattr(mujoco, "get_mju_user_warning", None)
    set_handler: Any = getattr(mujoco, "set_mju_user_warning", None)
    if get_handler is None or set_handler is None:
        yield
        return
    before = get_handler()
    set_handler(logging.getLogger("redline.envs").info)
    try:
        yield
    finally:
        set_handler(before)


def _without_order_check(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Take out the wrapper that looks at every step whether there was a reset before.

    The loop that steps the environment guarantees that, and the look costs as much as a
    third of a small environment's step.
    """
    if isinstance(env, OrderEnforcing):
        return _without_order_check(env.env)
    outer = env
    while isinstance(outer, gymnasium.Wrapper):
        if isinstance(outer.env, OrderEnforcing):
            outer.env = outer.env.env
        else:
            outer = outer.env
    return env


def _register_own(name: str) -> None:
    """Make Redline's own environments known to Gymnasium, if one of them is meant."""
    if name.startswith(ids.PREFIX):
        memory_tasks.register()
        goal_tasks.register()


def _make_game(
    env_id: str, protocol: atari.AtariPreset, env_kwargs: dict[str, Any]
) -> gymnasium.Env[Any, Any]:
    return atari.make_atari(import_module_of(env_id), protocol, env_kwargs)


def _make_registered(env_id: str, env_kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    name = import_module_of(env_id)
    _register_own(name)  # a worker process begins with an empty registry
    entry_point = str(gymnasium.spec(name).entry_point)
    try:
        with _quiet_mujoco(entry_point):
            return _without_order_check(
                gymnasium.make(name, disable_env_checker=True, **env_kwargs)
            )
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        for part, package, extra, purpose in _NEEDS:
            if part in entry_point and find_spec(package) is None:
                raise MissingExtraError(package, extra, purpose) from error
        raise EnvError(f"{env_id} cannot be made: {error}") from error


def _fitting(
    make: Callable[[], gymnasium.Env[Any, Any]], env_id: str, env_kwargs: dict[str, Any]
) -> gymnasium.Env[Any, Any]:
    """Make an environment; where it fails with `env_kwargs`, they are what to look at.

    Raises:
        ConfigError: if there are any, with what the environment or Gymnasium said.
    """
    try:
        return make()
    except RedlineError:
        raise
    except Exception as error:
        if not env_kwargs:
            raise  # its author needs the traceback
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"env_kwargs {env_kwargs} do not fit {env_id}: {said}. Give what its constructor and "
            f"gymnasium.make take."
        ) from error


def _unknown(env_id: str, message: str) -> UnknownNameError:
    with contextlib.suppress(MissingExtraError):
        atari.register_games()
    own = [name for name, spec in gymnasium.registry.items() if not atari.is_old_id(spec)]
    today = atari.id_of_today(env_id)
    matches = [today] if today else _close_ids(env_id, [*own, *minatar.IDS, *ids.GAMES])
    hint = (
        f"Did you mean {' or '.join(map(repr, matches))}?"
        if matches
        else "List the known ones with gymnasium.pprint_registry()."
    )
    return UnknownNameError(f"{message.rstrip('.')}. {hint}")


def _close_ids(env_id: str, known: list[str]) -> list[str]:
    """Other versions of the same environment if there are any, else ids with similar letters."""
    name = env_id.lower().rpartition("-v")[0]
    versions = [each for each in known if name and each.lower().rpartition("-v")[0] == name]
    if versions:
        return sorted(versions, reverse=True)[:4]
    by_lower_case = {each.lower(): each for each in known}
    close = difflib.get_close_matches(env_id.lower(), by_lower_case, n=4, cutoff=0.5)
    return [by_lower_case[match] for match in close]
