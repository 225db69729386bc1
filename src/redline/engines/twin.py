"""Running what an algorithm's class says, with other parts, on the algorithm's own state."""

from __future__ import annotations

from typing import Any


def twin(algorithm: Any, **parts: Any) -> Any:
    """An object with the same state as an algorithm, and other parts.

    The two share one dictionary of attributes: whatever either changes, both have changed. A part
    is found before the state is looked at, and cannot be set.

    Args:
        algorithm: what is written; it is not changed.
        parts: name -> what takes that name's place in the twin.
    """
    cls = type(algorithm)
    properties = {name: property(lambda _, part=part: part) for name, part in parts.items()}
    other = object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__, **properties}))
    other.__dict__ = algorithm.__dict__
    return other
