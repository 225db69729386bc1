"""Calls a run's callbacks, and keeps what they hold for a checkpoint."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from redline.collect import Collector
from redline.engines.watch import may_have_changed
from redline.envs.attributes import plain_attribute, set_attribute
from redline.envs.plain_data import NotPlainError, decode, encode, is_same, loses_its_class
from redline.errors import (
    CallbackError,
    ConfigError,
    DivergenceError,
    EnvExitError,
    IncompatibleCheckpointError,
    WorkerError,
)
from redline.plain_text import shortened
from redline.registry import PYTHON_ONLY, import_place, may_be_same, place_of
from redline.train.callbacks import ARGUMENTS, EVENTS, Curriculum, RunState
from redline.train.setting_values import words
from redline.user_code import is_a_users, may_not_exit


def callback_label(callback: Any) -> str:
    """What `config.json` calls a callback: module:Name of it or of its class."""
    if isinstance(callback, str):
        return callback
    return place_of(callback if inspect.isclass(callback) else type(callback))


def callbacks_given(given: Any) -> tuple[Any, ...]:
    """What was given as callbacks, one by one: also one alone, places in one text, or None.

    Raises:
        ConfigError: if it is neither a callback nor several.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        return words(given)
    if any(hasattr(given, event) for event in EVENTS):
        return (given,)
    try:
        return tuple(given)
    except TypeError as error:
        raise ConfigError(
            f"callbacks={shortened(given)} has none of the methods {', '.join(EVENTS)}. Give "
            "objects with at least one of them, such as callbacks=[redline.StopAtReturn(475)]."
        ) from error


def find_callback(given: Any) -> Any:
    """The callback that was given: an object, a class without arguments, or module:Name of one.

    Raises:
        UnknownNameError: if there is no such module or name.
        ConfigError: if it has none of a callback's methods.
    """
    found = given
    if isinstance(given, str):
        if ":" not in given or given.startswith(PYTHON_ONLY):
            raise ConfigError(f"callback {shortened(given)} is not module:Name. Give such a place.")
        found = import_place(given, "callback")
    if not any(callable(getattr(found, event, None)) for event in EVENTS):
        raise ConfigError(
            f"callback {shortened(given)} has none of the methods {', '.join(EVENTS)}. Give an "
            "object with at least one of them."
        )
    if not inspect.isclass(found):
        return found
    try:
        with may_not_exit(f"the constructor of the callback {shortened(given)}", ConfigError):
            return found()
    except TypeError as error:
        raise ConfigError(
            f"callback {shortened(given)} cannot be made without arguments ({error}). Give an "
            "object in place of the class."
        ) from error


class CallbackCalls:
    """The callbacks of one run, called in their order.

    Args:
        callbacks: see `find_callback`; already made.
        state: what each is called with.
        own: further ones that settings ask for, called last; they hold nothing to be saved.
    """

    def __init__(self, callbacks: Sequence[Any], state: RunState, own: Sequence[Any] = ()) -> None:
        self._callbacks, self.state = list(callbacks), state
        self._are_a_users, self._may_have_changed = any(map(is_a_users, callbacks)), False
        self._calls: dict[str, list[tuple[Any, Callable[[RunState], object]]]] = {
            event: [
                (callback, method)
                for callback in (*callbacks, *own)
                if (method := getattr(callback, event, None)) is not None
            ]
            for event in EVENTS
        }

    def wants(self, event: str) -> bool:
        """Whether any callback has this method."""
        return bool(self._calls[event])

    def call(self, event: str) -> None:
        """Call a method of all callbacks that have it.

        Raises:
            CallbackError: if one raises; with its traceback.
            DivergenceError: if one would save what is not finite: that is not the callback's fault.
        """
        for callback, method in self._calls[event]:
            try:
                method(self.state)
            except DivergenceError:
                raise
            except (Exception, SystemExit) as error:
                raise CallbackError(
                    f"{callback_label(callback)}.{event} raised {type(error).__name__}: {error}\n"
                    f"{''.join(traceback.format_exception(error))}"
                ) from error
        if self._calls[event] and self._are_a_users:
            may_have_changed()  # they are given the networks
            self._may_have_changed = True

    def may_have_changed_networks(self) -> bool:
        """Whether a user's callback was called since this was last asked."""
        found, self._may_have_changed = self._may_have_changed, False
        return found

    def unsaved(self) -> list[str]:
        """One sentence for each callback of which a checkpoint cannot hold everything."""
        said: list[str] = []
        for callback in self._callbacks:
            if not hasattr(callback, "state_dict"):
                names = [name for name in _attributes(callback) if not _is_plain(callback, name)]
                if names:
                    said.append(
                        f"callback {callback_label(callback)}: {', '.join(names)} cannot be saved "
                        f"with the run, since it is not plain data, or of a class derived from "
                        f"it. Give the callback state_dict() and load_state_dict(state) if "
                        f"resuming needs it."
                    )
        return said

    def state_dict(self) -> list[dict[str, Any]]:
        """What the callbacks hold, as plain data.

        Raises:
            CallbackError: if a callback's own `state_dict` raises.
        """
        return [
            {"callback": callback_label(callback), **self._saved(callback)}
            for callback in self._callbacks
        ]

    def _saved(self, callback: Any) -> dict[str, Any]:
        if hasattr(callback, "state_dict"):
            try:
                return {"state": callback.state_dict()}
            except (Exception, SystemExit) as error:
                raise CallbackError(
                    f"{callback_label(callback)}.state_dict raised {type(error).__name__}: "
                    f"{error}\n{''.join(traceback.format_exception(error))}"
                ) from error
        plain = {
            name: encode(value)
            for name, value in _attributes(callback).items()
            if _is_plain(callback, name)
        }
        return {"attributes": plain}

    def load_state_dict(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            IncompatibleCheckpointError: if it is of other callbacks.
        """
        had = [part["callback"] for part in saved]
        have = [callback_label(callback) for callback in self._callbacks]
        if len(had) != len(have) or not all(map(may_be_same, had, have)):
            raise IncompatibleCheckpointError(
                f"the checkpoint holds the state of the callbacks {shortened(had)}, and the run "
                f"has {have}. Resume with the same ones in the same order."
            )
        for callback, part in zip(self._callbacks, saved, strict=True):
            if "state" in part:
                callback.load_state_dict(part["state"])
            attributes = part.get("attributes", {})
            given = ARGUMENTS.get(type(callback), ())
            for name, value in attributes.items():
                if name not in given:
                    _require_data(callback, name)
                    _set(callback, name, decode(value))
            if given and isinstance(callback, Curriculum):
                callback.compare(attributes)


class TrainingEnvironments:
    """What callbacks may do to the run's training environments; see `callbacks.Environments`.

    Args:
        collector: steps them.
        restart: what was raised -> new workers, to which all attributes were given; or it raises
            that.
    """

    def __init__(
        self,
        collector: Collector,
        restart: Callable[[WorkerError | EnvExitError], None] | None = None,
    ) -> None:
        self._collector, self._restart = collector, restart
        self._attributes: dict[str, Any] = {}
        self._beside: list[gymnasium.Env[Any, Any]] = []

    def add(self, env: gymnasium.Env[Any, Any]) -> None:
        """Set attributes of an environment beside those that are stepped, too.

        Args:
            env: of the same kind, and no checkpoint holds it.
        """
        self._beside.append(env)

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Environments.set_attr`."""
        plain = plain_attribute(name, value)
        before = dict(self._attributes)
        self._attributes[name] = plain  # for workers that are made anew
        try:
            self._set_or_restart(name, value)
            self._set_beside(name, value)
        except Exception:
            self._attributes = before
            raise

    def _set_or_restart(self, name: str, value: Any) -> None:
        try:
            self._collector.set_env_attr(name, value)
        except (WorkerError, EnvExitError) as error:
            if self._restart is None:
                raise
            self._restart(error)

    def follow(self, attributes: Mapping[str, Any]) -> None:
        """Set what differs from what was set in the environments of another rank.

        Args:
            attributes: name -> plain data, from its `state_dict`.
        """
        for name, value in attributes.items():
            if name not in self._attributes or not is_same(self._attributes[name], value):
                self.set_attr(name, decode(value))

    def set_again(self, collector: Collector | None = None) -> None:
        """Set what was set before, in environments that were made anew.

        Args:
            collector: steps them; None: the one from before.
        """
        self._collector = collector or self._collector
        for name, value in self._attributes.items():
            self._collector.set_env_attr(name, decode(value))

    def state_dict(self) -> dict[str, Any]:
        """What was set, as plain data."""
        return dict(self._attributes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember what was set; environments that were restored have it already."""
        self._attributes = dict(state)
        for name, value in self._attributes.items():
            self._set_beside(name, decode(value))

    def _set_beside(self, name: str, value: Any) -> None:
        for env in self._beside:
            set_attribute(env, name, value, "the environment that says what goals pay")


def _require_data(callback: Any, name: str) -> None:
    """Refuse to set what is no data: names come from a checkpoint, which may be a stranger's.

    Raises:
        IncompatibleCheckpointError: if it is Python's own name, a method or a property.
    """
    shown = getattr(type(callback), name, None)
    is_slot = inspect.ismemberdescriptor(shown)
    if name.startswith("__") or callable(shown) or (hasattr(shown, "__set__") and not is_slot):
        raise IncompatibleCheckpointError(
            f"the checkpoint sets {shortened(name)} of the callback {callback_label(callback)}, "
            "which holds no data there. Resume with the callback that the run was begun with."
        )


def _set(callback: Any, name: str, value: Any) -> None:
    made_by = getattr(type(callback), "__dataclass_params__", None)
    if made_by is not None and made_by.frozen:
        object.__setattr__(callback, name, value)
    else:
        setattr(callback, name, value)


def _attributes(callback: Any) -> dict[str, Any]:
    """What it holds by name, in its `__dict__` and in slots."""
    slots = [
        name
        for kind in type(callback).__mro__
        if "__slots__" in vars(kind)
        for name, member in vars(kind).items()
        if inspect.ismemberdescriptor(member) and hasattr(callback, name)
    ]
    return {name: getattr(callback, name) for name in slots} | getattr(callback, "__dict__", {})


def _is_plain(callback: Any, name: str) -> bool:
    value = _attributes(callback)[name]
    try:
        encode(value)
    except NotPlainError:
        return False
    return not loses_its_class(value)
