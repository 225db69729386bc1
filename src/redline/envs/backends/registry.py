"""Which back ends there are; how one is found, `redline.registry` says.

A back end of one's own needs no entry here: it is given as a class or as module:Name, or an
installed package offers it in the group `redline.env_backends`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redline.envs.backends.ale import AleBackend
from redline.envs.backends.backend import Backend
from redline.envs.backends.device import DeviceBackend
from redline.envs.backends.env_loop import EnvLoop
from redline.envs.backends.envpool import EnvPoolBackend
from redline.envs.backends.processes import ProcessBackend
from redline.envs.backends.vector_env import VectorBackend
from redline.errors import ConfigError
from redline.registry import Registry

if TYPE_CHECKING:
    from redline.envs.settings import EnvSource

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


def backend_names() -> tuple[str, ...]:
    """What can be asked for by name: "auto", the built-in ones, those of installed packages."""
    return _REGISTRY.names()


def _checked(backend: Any, given: str) -> type[Backend]:
    """`backend`, if it is a class that can serve as one."""
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise ConfigError(
            f"{given} is no environment back end. Give a name of {', '.join(backend_names())}, or "
            f"a class that derives from redline.envs.Backend."
        )
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or _REGISTRY.built_in.get(name, backend) is not backend:
        raise ConfigError(
            f"the back end {backend.__qualname__} has the name {name!r}. Set `name` in the class "
            f"to a string that is none of {', '.join(_REGISTRY.built_in)}: saved states are told "
            f"by it."
        )
    return backend


_REGISTRY: Registry[Backend] = Registry(
    "environment back end",
    {backend.name: backend for backend in BACKENDS},
    "redline.env_backends",
    _checked,
    also=("auto",),
)
find_backend, backend_label = _REGISTRY.find, _REGISTRY.label
