"""Every error that Redline raises on purpose, in one tree.

A message names the value, the reason and the fix.

```
RedlineError
├── ConfigError (ValueError)        a setting is wrong, or two settings contradict each other
│   ├── UnknownNameError            no such environment, algorithm, preset, format, ...
│   └── SpaceError                  a policy or algorithm cannot serve this space
├── MissingExtraError (ImportError) an optional package is needed; names the pip command
├── CaptureError                    an update cannot be captured as a graph
├── DeviceError                     the requested device is not there
│   └── PlacementError              a policy's data: wrong device, dtype or shape
├── EnvError                        an environment broke its contract
│   ├── EnvExitError                it called sys.exit
│   ├── EnvDataError (ValueError)   NaN, infinity, wrong shape or dtype in what it returned
│   └── ActionError (ValueError)    an action outside the action space
├── WorkerError                     a worker process raised, died or stopped answering
├── DivergenceError                 a run's metrics or parameters are no longer finite numbers
├── CallbackError                   a callback of the user's raised; with its traceback
├── CheckpointError                 a checkpoint cannot be used
│   ├── CorruptCheckpointError      torn, truncated or altered files
│   └── IncompatibleCheckpointError from another format version, environment or setting
├── RunDirectoryError (OSError)     the run directory cannot be written, or is not one
├── SweepStateError (OSError)       a sweep's folder or database cannot be used
├── ClusterError                    a cluster or the other ranks cannot be reached, or have ended
└── ProfileError                    profiling cannot start or go on
    ├── ProfilerConflictError       another profiler or debugger holds the hook
    └── SessionError                a profile session cannot be written or read
```
"""

from __future__ import annotations

__all__ = [
    "ActionError",
    "CallbackError",
    "CaptureError",
    "CheckpointError",
    "ClusterError",
    "ConfigError",
    "CorruptCheckpointError",
    "DeviceError",
    "DivergenceError",
    "EnvDataError",
    "EnvError",
    "EnvExitError",
    "IncompatibleCheckpointError",
    "MissingExtraError",
    "PlacementError",
    "ProfileError",
    "ProfilerConflictError",
    "RedlineError",
    "RunDirectoryError",
    "SessionError",
    "SpaceError",
    "SweepStateError",
    "UnknownNameError",
    "WorkerError",
]


class RedlineError(Exception):
    """The root of the tree: `except RedlineError` catches all of it and nothing else."""


class ConfigError(RedlineError, ValueError):
    """A setting is wrong, or two settings contradict each other; found before work starts."""


class UnknownNameError(ConfigError):
    """No environment, algorithm, preset or format has this name; lists close matches."""


class SpaceError(ConfigError):
    """A policy or algorithm cannot serve this observation or action space."""


class MissingExtraError(RedlineError, ImportError):
    """An optional package is needed.

    Args:
        package: import name of what is missing.
        extra: the extra of `redline` that brings it; None: none does.
        purpose: what it is needed for, to complete "is needed for ...".
    """

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        self.package, self.extra, self.purpose = package, extra, purpose
        wanted = package if extra is None else f"'redline[{extra}]'"
        super().__init__(
            f"the package {package!r} is needed for {purpose} but is not installed. "
            f"Install it with: pip install {wanted}"
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str | None, str]]:
        """Survive the trip from a worker process (the default keeps only the message)."""
        return (type(self), (self.package, self.extra, self.purpose))


class DeviceError(RedlineError):
    """The requested device is not there."""


class CaptureError(RedlineError):
    """An update cannot be captured as a graph; names the operator and the line."""


class PlacementError(DeviceError, ValueError):
    """What goes into a policy or comes out has the wrong device, dtype, shape or name."""


class EnvError(RedlineError):
    """An environment broke its contract."""


class EnvExitError(EnvError):
    """An environment raised what would end the run as if it were complete, as sys.exit does."""


class EnvDataError(EnvError, ValueError):
    """An environment returned NaN, infinity, or the wrong shape or dtype."""


class ActionError(EnvError, ValueError):
    """An action lies outside the action space."""


class WorkerError(RedlineError):
    """A worker process raised, died or stopped answering; carries its traceback or signal."""


class DivergenceError(RedlineError):
    """A run's metrics or parameters are no longer finite numbers; names the first of each."""


class CallbackError(RedlineError):
    """A callback of the user's raised; the message holds its traceback."""


class CheckpointError(RedlineError):
    """A checkpoint cannot be used."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's files are torn, truncated or altered."""


class IncompatibleCheckpointError(CheckpointError):
    """A checkpoint comes from another format version, environment or setting."""


class RunDirectoryError(RedlineError, OSError):
    """The run directory cannot be written, or is not a run directory."""


class SweepStateError(RedlineError, OSError):
    """A sweep's folder or database is locked, full, damaged or from another version."""


class ClusterError(RedlineError):
    """A cluster or the other ranks of a run cannot be reached, or have ended."""


class ProfileError(RedlineError):
    """Profiling cannot start or go on."""


class ProfilerConflictError(ProfileError):
    """Another profiler or a debugger holds the interpreter's hook."""


class SessionError(ProfileError):
    """A profile session cannot be written, or is not one, or is from another version."""
