"""Environments that the program defines itself, and that derive from no library's.

A class with a `step` and a `reset` of the program's own may be anything. So its first step is
looked at: an env answers it with the observation, the reward, whether the episode has ended (one
truth value, or two) and a dictionary, as Gymnasium's do. From the second step on it counts as
simulation; a class whose first step answers otherwise is left as it was. The session keeps the
names, so that reports can say what was taken for an environment.
"""

from __future__ import annotations

import builtins
import functools
import numbers
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from redline.profile import _native, marks
from redline.profile.record.simulation import in_simulation

INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
METHODS = ("step", "reset")
ANSWER_LENGTHS = (4, 5)

__all__ = ["follow_classes", "is_env_answer", "without_look"]

Replace = Callable[[Any, str, Any], None]


def follow_classes(replace: Replace) -> None:
    """Look at each class that is defined from here on.

    Args:
        replace: sets an attribute of an object, and takes it back when the recording ends.
    """

    def look(made: Any) -> None:
        if isinstance(made, type) and _may_be_env(made):
            replace(made, "step", _FirstStep(made, replace))

    build: Any = builtins.__build_class__
    replace(builtins, "__build_class__", _native.class_builder(build, look))


def without_look(step: Any) -> Any:
    """The method itself, where its first call was to be looked at.

    As of the base class of a library that is not installed, such as a clone of its repository.
    """
    return step.step if isinstance(step, _FirstStep) else step


def _may_be_env(kind: type) -> bool:
    step = vars(kind).get("step")
    return (
        isinstance(step, types.FunctionType)
        and callable(getattr(kind, "reset", None))
        and _is_of_program(step)
    )


def _is_of_program(function: types.FunctionType) -> bool:
    """Neither installed nor Python's, nor Redline's, whose environments are known."""
    file = function.__code__.co_filename
    package = function.__module__.partition(".")[0]
    return package != "redline" and not any(part in file for part in INSTALLED)


class _FirstStep:
    """The `step` of a class until it was called once.

    By pickle it travels as the method it stands for: the process that gets it looks for itself.

    Args:
        kind: the class.
        replace: see `follow_classes`.
    """

    def __init__(self, kind: type, replace: Replace) -> None:
        self._kind, self._replace = kind, replace
        self.step: types.FunctionType = vars(kind)["step"]
        functools.update_wrapper(self, self.step)

    def __get__(self, env: Any, kind: type | None = None) -> Any:
        """Bound as a method is."""
        return self if env is None else types.MethodType(self, env)

    def __reduce__(self) -> Any:
        """The method itself, by name where that leads here."""
        return marks.reduced(self, self.step)

    def __call__(self, env: Any, *args: Any, **kwargs: Any) -> Any:
        """Step the env, and look at the answer."""
        present = vars(self._kind).get("step")
        if present is not self and callable(present):  # kept by who calls it
            return present(env, *args, **kwargs)
        answer = self.step(env, *args, **kwargs)
        if vars(self._kind).get("step") is self:
            self._kind.step = self.step  # pyright: ignore[reportAttributeAccessIssue]
            if is_env_answer(answer):
                _take_for_env(self._kind, self._replace)
                _note(self._kind, _num_envs(env, answer))
        return answer


def _take_for_env(kind: type, replace: Replace) -> None:
    """Time its own `step`, and `reset` of whichever class of the program has it."""
    for method in METHODS:
        owner = next(base for base in kind.__mro__ if method in vars(base))
        function = vars(owner)[method]
        if isinstance(function, types.FunctionType) and _is_of_program(function):
            replace(owner, method, in_simulation(function, method))


def _note(kind: type, num_envs: int) -> None:
    known: list[str] = marks.known_metadata().get("inferred_envs") or []
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name not in known:
        marks.metadata(inferred_envs=[*known, name])
    if num_envs and marks.known_metadata().get("num_envs") is None:
        marks.metadata(num_envs=num_envs)


def _num_envs(env: Any, answer: tuple[Any, ...]) -> int:
    """As the env says, else as many as it has rewards; 0: one, or not known."""
    said = getattr(env, "num_envs", None)
    if type(said) is int and said > 0:
        return said
    try:
        return len(answer[1])
    except TypeError:  # one number
        return 0


def is_env_answer(answer: Any) -> bool:
    """Whether this is what `step` of an env returns: (obs, reward, ended, [cut short,] info)."""
    if not isinstance(answer, tuple) or len(cast(Any, answer)) not in ANSWER_LENGTHS:
        return False
    _, reward, *ends, info = cast(tuple[Any, ...], answer)
    return _is_reward(reward) and all(map(_is_ending, ends)) and _is_info(info)


def _is_reward(value: Any) -> bool:
    several = _several(value)
    if several is not None:
        return bool(several) and all(map(_is_reward, several))
    if isinstance(value, int | float | numbers.Real):
        return type(value) is not bool
    return _kind_of(value).startswith(("float", "int", "bfloat"))


def _is_ending(value: Any) -> bool:
    several = _several(value)
    if several is not None:
        return bool(several) and all(map(_is_ending, several))
    return isinstance(value, bool) or _kind_of(value) == "bool"


def _is_info(value: Any) -> bool:
    several = _several(value)
    if several is not None:
        return bool(several) and all(isinstance(each, Mapping) for each in several)
    return isinstance(value, Mapping)


def _several(value: Any) -> list[Any] | None:
    """What a list or a tuple holds."""
    return list(cast(list[Any], value)) if isinstance(value, list | tuple) else None


def _kind_of(array: Any) -> str:
    """The name of the type of what an array or a tensor holds, "" of anything else."""
    return str(getattr(array, "dtype", "")).rpartition(".")[2]
