"""Training: settings, loops, checkpoints, logs, evaluation.

The module itself can be called, so that `redline.train("ppo", env="CartPole-v1")` works
although this package has the same name; the function is `redline.train.runs.start.train`.
Importing the package imports nothing heavy and changes nothing about the process.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

    from redline.train.runs.run import Run


class _CallableModule(ModuleType):
    """A module that trains when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Run:
        """Train an agent; see `redline.train.runs.start.train`."""
        from redline.train.process import before_torch_loads

        said = kwargs.get("tune_process")
        if said is None or said:  # said here, it wins over what the settings have
            before_torch_loads(kwargs.get("resume"), None if said else kwargs.get("config"))
        from redline.train.runs.start import train

        return train(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name, as a function is, so that process pools and joblib can send it."""
        return importlib.import_module, (self.__name__,)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """That of the function, for `help(redline.train)` and editors."""
        from redline.train.runs.start import train

        return train.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        """What editors show of `redline.train`."""
        import inspect

        from redline.train.runs.start import train

        return inspect.signature(train)


sys.modules[__name__].__class__ = _CallableModule
