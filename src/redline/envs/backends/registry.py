"""Which back ends there are, and how one is found by name.

A back end of one's own needs no entry here. It is given as a class, as "module:Name", or by
the name of an entry point of the group "redline.env_backends" in an installed package:

    [project.entry-points."redline.env_backends"]
    point-mass = "my_package.point_mass:PointMass"
"""

from __future__ import annotations

import importlib
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from redline.envs.backends.ale import AleBackend
from redline.envs.backends.backend import Backend
from redline.envs.backends.device import DeviceBackend
from redline.envs.backends.env_loop import EnvLoop
from redline.envs.backends.envpool import EnvPoolBackend
from redline.envs.backends.processes import ProcessBackend
from redline.envs.backends.vector_env import VectorBackend
from redline.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from redline.envs.settings import EnvSource

GROUP = "redline.env_backends"

# The built-in ones, in the order in which "auto" asks them. The last one that serves anything
# takes all that the others leave. Their modules import no simulator and no torch: each does so
# when environments are made.
BACKENDS: tuple[type[Backend], ...] = (
    VectorBackend,
    AleBackend,
    DeviceBackend,
    EnvLoop,
    ProcessBackend,
    EnvPoolBackend,
)
_BY_NAME = {backend.name: backend for backend in BACKENDS}


def backend_names() -> tuple[str, ...]:
    """What can be asked for by name: "auto", the built-in ones, those of installed packages."""
    return ("auto", *_BY_NAME, *sorted(_installed()))


def choose_backend(env: EnvSource, backend: str | type[Backend]) -> type[Backend]:
    """The back end that is to step `env`.

    Args:
        env: an id, a callable that makes one environment, or a ready vector environment.
        backend: "auto", or as for `find_backend`.

    Raises:
        UnknownNameError: if there is no such back end.
        ConfigError: if it cannot step `env`.
    """
    if backend == "auto":
        # Packages are asked for by name only: installing one must not change what "auto" takes.
        return next(known for known in BACKENDS if known.serves(env))
    found = find_backend(backend)
    found.check_env(env)
    return found


def find_backend(backend: str | type[Backend]) -> type[Backend]:
    """A back end by class, name, entry point or "module:Name", whose module is imported.

    A "module:Name" that was read from a file must not get here by itself: whoever runs the
    program decides what is imported.

    Raises:
        UnknownNameError: if there is none of this name; says which there are.
        ConfigError: if what was found is no back end.
    """
    if not isinstance(backend, str):
        return _checked(backend)
    if backend in _BY_NAME:
        return _BY_NAME[backend]
    if ":" in backend:
        return _checked(_import(backend))
    installed = _installed()
    if backend in installed:
        return _checked(installed[backend].load())
    raise UnknownNameError(
        f"there is no environment back end {backend!r}. Choose one of "
        f"{', '.join(backend_names())}, or give one of your own as 'module:Name'."
    )


def backend_label(backend: str | type[Backend]) -> str:
    """What a run's configuration holds of a back end: its name, or where its class is.

    A class that no module gives back, because it is in `__main__` or inside a function,
    becomes "python:Name", which only the program that has it can turn back into the class.
    """
    if isinstance(backend, str):
        return backend
    if backend in BACKENDS:
        return backend.name
    if backend.__module__ == "__main__" or "<locals>" in backend.__qualname__:
        return f"python:{backend.__qualname__}"
    return f"{backend.__module__}:{backend.__qualname__}"


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _import(path: str) -> Any:
    """The object that "module:Name" is."""
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise UnknownNameError(
            f"the module {module!r} of the back end {path!r} cannot be imported ({error}). Install "
            f"it, or put its folder on the path: PYTHONPATH=FOLDER redline ..."
        ) from error
    except AttributeError as error:
        raise UnknownNameError(
            f"the module {module!r} has no back end {name!r} ({error}). Give 'module:Name' with "
            f"the name of a class in it."
        ) from error


def _checked(backend: Any) -> type[Backend]:
    """`backend`, if it is a class that can serve as one."""
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise ConfigError(
            f"backend={backend!r} is no environment back end. Give a name of "
            f"{', '.join(backend_names())}, or a class that derives from redline.envs.Backend."
        )
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or _BY_NAME.get(name, backend) is not backend:
        raise ConfigError(
            f"the back end {backend.__qualname__} has the name {name!r}. Set `name` in the class "
            f"to a string that is none of {', '.join(_BY_NAME)}: saved states are told by it."
        )
    return backend
