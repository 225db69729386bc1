"""Finding a class: a built-in one, one of an installed package, or a user's own.

Algorithms, environment back ends, collectors and networks are all found this way; a network may be
a function, too.

| given | finds |
|---|---|
| a class | itself |
| `"ppo"` | the built-in class of that name, or the one that an installed package offers |
| `"my_module:Mine"` | that class of that module, which is imported |

A package offers a class by an entry point of the registry's group:

    [project.entry-points."redline.algorithms"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redline.errors import ConfigError, UnknownNameError
from redline.plain_text import shown
from redline.user_code import may_not_exit

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

PYTHON_ONLY = "python:"
"""Begins the label of a class or environment that only the program which made it can give."""


def is_named(label: str) -> bool:
    """Whether a label is a name that Redline or an installed package knows, not a place in code."""
    return ":" not in label


def place_of(item: Any) -> str:
    """module:Name of a class or function, or "python:module.Name" where no import gives it back."""
    module, name = item.__module__, item.__qualname__
    if module == "__main__" or "<locals>" in name:
        return f"{PYTHON_ONLY}{module}.{name}"
    return f"{module}:{name}"


def may_be_same(one: str, other: str) -> bool:
    """Whether two labels may be of one object.

    A script's class is `__main__`'s while the script runs, and its module's once that is imported.
    So where one label is `__main__`'s, the names within the modules must be equal, and no more is
    known.
    """
    main = f"{PYTHON_ONLY}__main__."
    if one.startswith(main) == other.startswith(main):
        return one == other
    script, imported = (one, other) if one.startswith(main) else (other, one)
    name = script.removeprefix(main)
    return imported.endswith((f".{name}", f":{name}"))


class Registry(Generic[T]):
    """The classes of one kind.

    Args:
        kind: what messages call it, such as "algorithm".
        built_in: name -> the class, or module:Name where importing it at once would be slow.
        group: of the entry points by which packages offer theirs.
        check: (what was found, what was given) -> the class, or raises why it cannot serve.
        also: further names that a user may give, which stand for no class.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, type[T] | str],
        group: str,
        check: Callable[[Any, str], type[T]],
        also: tuple[str, ...] = (),
    ) -> None:
        self.built_in, self.group = built_in, group
        self._kind, self._check, self._also = kind, check, also

    def names(self) -> tuple[str, ...]:
        """What a user may give: the built-in ones in order, then those of installed packages."""
        return (*self._also, *self.built_in, *sorted(set(self._installed()) - set(self.built_in)))

    def find(self, choice: str | type[T]) -> type[T]:
        """The class that was given, or that has this name.

        A "module:Name" that was read from a file must not get here by itself: whoever runs the
        program decides what is imported.

        Raises:
            UnknownNameError: if there is none; lists what there is.
            ConfigError: if what was found is not of this kind.
        """
        if not isinstance(choice, str):
            return self._check(choice, repr(choice))
        if choice in self.built_in:
            known: Any = self.built_in[choice]
            return self._import(known) if isinstance(known, str) else known
        if not is_named(choice) and not choice.startswith(PYTHON_ONLY):
            return self._check(import_place(choice, self._kind), choice)
        installed = self._installed()
        if choice in installed:
            with may_not_exit(f"the package of the {self._kind} {shown(choice)}", ConfigError):
                found = installed[choice].load()
            return self._check(found, choice)
        names = self.names()
        close = difflib.get_close_matches(choice, names, n=2)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        known_ones = f"Choose one of {', '.join(names)}; or give" if names else "Give"
        raise UnknownNameError(
            f"there is no {self._kind} {shown(choice)}.{hint} {known_ones} module:Name of your own."
        )

    def label(self, choice: str | type[T]) -> str:
        """What `config.json` and messages call it: its name, else where it stands."""
        if not isinstance(choice, (str, type)):
            self._check(choice, repr(choice))  # says what it should be
        place = choice if isinstance(choice, str) else place_of(choice)
        if is_named(place):
            return place
        for name, known in self.built_in.items():
            if place == (known if isinstance(known, str) else place_of(known)):
                return name
        return next((p.name for p in self._installed().values() if p.value == place), place)

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _import(self, place: str) -> Any:
        return _imported(place, self._kind)


def entry_points(*, group: str) -> Iterable[EntryPoint]:
    """Those of installed packages in a group.

    What finds them is imported here: it takes a third of the time that help may take, and help
    seldom needs it.
    """
    from importlib import metadata

    return metadata.entry_points(group=group)


def import_place(place: str, kind: str) -> Any:
    """What stands at module:Name; the module may lie in the present directory.

    A place that was read from a file must not get here by itself: whoever runs the program
    decides what is imported.

    Args:
        place: module:Name.
        kind: what messages call it, such as "callback".

    Raises:
        UnknownNameError: if there is no such module, or nothing of that name in it.
    """
    find_modules_here()
    return _imported(place, kind)


def find_modules_here() -> None:
    """Let modules of the present directory be imported, after those that are installed.

    `redline` is an installed program: unlike python's, its path does not begin here.
    """
    if "" not in sys.path:
        sys.path.append("")


def require_place(module: str, name: str, what: str) -> None:
    """Refuse a place that cannot be one, such as `:Name` or `.:Name`.

    Args:
        module: what stands before the colon.
        name: what stands behind it.
        what: to begin the message with.

    Raises:
        UnknownNameError: if a part of it is missing.
    """
    if not name or not all(module.split(".")):
        raise UnknownNameError(
            f"the {what} is no place in Python code: it lacks a module or a name. Give module:Name."
        )


def _imported(place: str, kind: str) -> Any:
    module, _, name = place.partition(":")
    require_place(module, name, f"{kind} {shown(place)}")
    try:
        with may_not_exit(f"the module {shown(module)} of the {kind} {shown(place)}", ConfigError):
            found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise UnknownNameError(
            f"there is no module {shown(module)} to take the {kind} {shown(place)} from. Give "
            f"module:Name, with the module in the present directory or installed."
        ) from error
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError as error:
        raise UnknownNameError(
            f"module {shown(module)} has no {kind} {shown(name)}. Give module:Name of one in it."
        ) from error
