"""Collectors by name: those that are here, those of installed packages, and your own.

A collector is given as its class, by its name, or as "module:Name". A package makes its
collectors known by name with an entry point:

    [project.entry-points."redline.collectors"]
    logging = "my_package.collecting:LoggingCollector"
"""

from __future__ import annotations

import difflib
import importlib
import sys
from functools import reduce
from importlib.metadata import entry_points
from typing import Any

from redline.collect.central import AlternatingCollector, CentralCollector
from redline.collect.collector import Collector
from redline.collect.device import DeviceCollector
from redline.collect.serial import SerialCollector
from redline.collect.workers import AsyncCollector, WorkersCollector
from redline.errors import ConfigError, UnknownNameError

GROUP = "redline.collectors"
_BUILT_IN: dict[str, type[Collector]] = {
    kind.name: kind
    for kind in (
        SerialCollector,
        CentralCollector,
        AlternatingCollector,
        WorkersCollector,
        AsyncCollector,
        DeviceCollector,
    )
}


def collector_names() -> tuple[str, ...]:
    """The names of the built-in collectors, then those of installed packages."""
    installed = [point.name for point in entry_points(group=GROUP)]
    return (*_BUILT_IN, *(name for name in installed if name not in _BUILT_IN))


def find_collector(choice: str | type[Collector]) -> type[Collector]:
    """The class of a collector.

    Args:
        choice: a class, a name of `collector_names()`, or "module:Name", which is imported.

    Raises:
        UnknownNameError: if there is no such collector; names what comes close.
        ConfigError: if what was found is not a class derived from `Collector`.
    """
    if not isinstance(choice, str):
        return _checked(choice, repr(choice))
    if choice in _BUILT_IN:
        return _BUILT_IN[choice]
    if ":" in choice and not choice.startswith("python:"):
        return _checked(_imported(choice), choice)
    for point in entry_points(group=GROUP):
        if point.name == choice:
            return _checked(point.load(), point.value)
    names = collector_names()
    close = difflib.get_close_matches(choice, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownNameError(
        f"there is no collector {choice!r}.{hint} Choose one of {', '.join(names)}, or name a "
        f"class of your own as 'module:Name'."
    )


def collector_label(choice: str | type[Collector]) -> str:
    """What a run's configuration and its messages call a collector.

    Returns:
        Its name, if it has one to be found by; else "module:Name"; or "python:Name" for a
        class that no module gives back, such as one made in a function or in a script.
    """
    if isinstance(choice, str):
        return choice
    place = f"{choice.__module__}:{choice.__qualname__}"
    for point in entry_points(group=GROUP):
        if point.value == place:
            return point.name
    if _BUILT_IN.get(choice.name) is choice:
        return choice.name
    if choice.__module__ == "__main__" or "<locals>" in choice.__qualname__:
        return f"python:{choice.__qualname__}"
    return place


def _imported(choice: str) -> Any:
    module, _, name = choice.partition(":")
    if "" not in sys.path:  # the path of an installed program does not begin here, python's does
        sys.path.insert(0, "")
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise UnknownNameError(
            f"there is no module {module!r} to take the collector {choice!r} from. Give "
            f"module:Name, with the module in the present directory or installed."
        ) from error
    except AttributeError as error:
        raise UnknownNameError(
            f"the module {module!r} has no {name!r} to collect with. Give module:Name of a class "
            f"in it."
        ) from error


def _checked(found: Any, choice: str) -> type[Collector]:
    if not (isinstance(found, type) and issubclass(found, Collector)):
        raise ConfigError(
            f"collector {choice} is not a class derived from redline.collect.Collector. Give such "
            f"a class, not an object of it."
        )
    return found
