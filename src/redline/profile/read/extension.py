"""The C extension that reads and sums events."""

from __future__ import annotations

from typing import Any

from redline.errors import ProfileError

__all__ = ["sweep_extension"]


def sweep_extension() -> Any:
    """The module, which has no types.

    Raises:
        ProfileError: if it was not built.
    """
    try:
        from redline.profile import _sweep
    except ImportError as error:
        raise ProfileError(
            "the C extension redline.profile._sweep was not built, so no session can be analysed. "
            "Install a C compiler and run `pip install --force-reinstall redline`"
        ) from error
    return _sweep
